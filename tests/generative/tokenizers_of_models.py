"""Small tokenizers of the kinds that language models have."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

WORDS = ["hello", "world", "the", "cat", ",", "é"]


def byte_level() -> Tokenizer:
    """Return a tokenizer as GPT-2's, Llama 3's and Qwen's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = [
        ("h", "e"),
        ("he", "l"),
        ("Ġ", "w"),
        ("Ã", "©"),
        ("Ġ", "Ġ"),
        ("l", "o"),
        ("hel", "lo"),
    ]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|python_tag|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("漢字", special=False)])
    begin = tokenizer.token_to_id("<|begin|>")
    assert begin is not None
    tokenizer.post_processor = TemplateProcessing("<|begin|> $A", None, [("<|begin|>", begin)])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """Return a tokenizer as Llama 2's, Mistral's and Gemma's: unknown characters are bytes."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for letter in ["▁", *"abcdefghijklmnopqrstuvwxyz.,!"]:
        vocab[letter] = len(vocab)
    merges = [("▁", "a"), ("▁", "▁"), ("t", "h"), ("th", "e"), ("▁", "the")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """Return a tokenizer of whole words, whose decoder puts spaces before them."""
    words = ["<unk>", *(f"▁{word}" for word in WORDS), *WORDS, "▁"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def words() -> Tokenizer:
    """Return a tokenizer of whole words without a decoder."""
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["<unk>", *WORDS])}, "<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


ALL = {
    "byte level": byte_level,
    "sentence piece": sentence_piece,
    "metaspace": metaspace,
    "words": words,
}
