"""What transformers makes of 1,000 texts, with tokenizers of each kind trained on some of them."""

import json
import random
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

WORDS = (  # noqa: SIM905 - two lines instead of fifty
    "the a film was good bad great awful never always seen it's don't naïve café Straße İstanbul "
    "2024 3.14 e-mail@example.com http://x.y/z C++ <b> [SEP] [MASK] \u00e9 e\u0301 \u200b \ufeff "
    "漢字 日本語 한국어 中文测试 العربية हिन्दी ไทย 🙂 👩‍👩‍👧 🇨🇭 ﬁ Ω ½ ™ \t \n ... !!! — “quoted”"
).split(" ")
KINDS = ("wordpiece", "bpe", "unigram")


def texts(count=1000):
    """The same each time: empty, blank, long, of 100 KB, and of words in any order."""
    draw = random.Random(7)
    made = [
        "",
        " ",
        "\n",
        "x" * 300,
        "word " * 20_000,
        "漢字" * 17_000,
        "🙂" * 25_000,
        "a" * 102_400,
    ]
    while len(made) < count:
        made.append(draw.choice([" ", "", "  "]).join(draw.choices(WORDS, k=draw.randint(1, 40))))
    return made


def trained(kind):
    """A tokenizer as BERT's, GPT-2's or T5's, of a small vocabulary."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "wordpiece":
        one = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        one.normalizer = normalizers.BertNormalizer()
        one.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special)
    elif kind == "bpe":
        one = Tokenizer(models.BPE())
        one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        one.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=special, initial_alphabet=alphabet
        )
    else:
        one = Tokenizer(models.Unigram())
        one.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        one.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="[UNK]")
    one.train_from_iterator(texts()[8:], trainer)
    ids = [(name, one.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    one.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=one,
        model_max_length=64,
        padding_side="left" if kind == "bpe" else "right",
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )


def save():
    """Folders with tokenizers, and what transformers makes of the texts and of pairs of them."""
    from cohort_prepare.frameworks.text_files import write_text_files

    for kind in KINDS:
        tokenizer, folder = trained(kind), Path(kind)
        tokenizer.save_pretrained(folder)
        names = ["input_ids", "attention_mask", "token_type_ids"]
        made = Path(kind, "made")
        made.mkdir()
        write_text_files(folder, made, inputs=names, longest=None, pairs=False)
        given = texts()
        answers = []
        for first in range(0, len(given), 50):
            some = given[first : first + 50]
            for second in (None, [text[:500][::-1] for text in some]):
                options = {"padding": True, "truncation": True, "return_token_type_ids": True}
                made_of = tokenizer(some, second, **options)
                answers.append({name: made_of[name] for name in names})
        (folder / "answers.json").write_text(json.dumps(answers))
