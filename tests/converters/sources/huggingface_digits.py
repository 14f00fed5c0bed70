"""A folder as transformers saves it, with weights drawn at random."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "good", "morning", "the", "second", "sentence", "is", "longer", "than", "first"]


def save():
    torch.manual_seed(0)
    names = {0: "negative", 1: "positive"}
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    BertForSequenceClassification(config).save_pretrained("text")
    Path("words.txt").write_text("\n".join(WORDS))
    BertTokenizer("words.txt").save_pretrained("text")
