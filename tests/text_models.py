"""Models of text that are small, and tokenizers for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests import onnx_models

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [*SPECIAL, "good", "bad", "very", "film", "the", "a", "##s", "漢", "字", "🙂"]


def wordpiece() -> Tokenizer:
    """Return a tokenizer as BERT's, of a few words."""
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def classifier(
    *,
    masked: bool = True,
    length: int | str = "length",
    datatype: int = TensorProto.INT64,
    words: int = len(WORDS),
    types: bool = False,
) -> onnx.ModelProto:
    """Sums what a table has of each id, for three classes; without a mask, padding counts."""
    table: Any = np.random.default_rng(3).normal(size=(words, 3)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["each"])]
    names = ["input_ids"]
    if masked:
        names.append("attention_mask")
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["weights"]),
            helper.make_node("Mul", ["each", "weights"], ["kept"]),
        ]
    last = "kept" if masked else "each"
    if types:
        names.append("token_type_ids")
        nodes += [
            helper.make_node("Cast", ["token_type_ids"], ["kinds"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["kinds", "last"], ["kind"]),
            helper.make_node("Add", [last, "kind"], ["typed"]),
        ]
        last = "typed"
    nodes.append(helper.make_node("ReduceSum", [last, "one"], ["logits"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, datatype, ["N", length]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([-1], np.int64), "last"),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = onnx_models.IR_VERSION
    return model


def save(
    folder: Path,
    config: str,
    model: onnx.ModelProto | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a version, its tokenizer and the config of its model to a model's `folder`."""
    path = onnx_models.save(model or classifier(), folder / "1/model.onnx")
    (tokenizer or wordpiece()).save(str(folder / "1/tokenizer.json"))
    (folder / "config.yaml").write_text(config)
    return path
