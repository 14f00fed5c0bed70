"""Text embeddings: the pooling that sentence-transformers applies to a model's outputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cohort_prepare.failures import Rejected

EMBEDDING = "sentence_embedding"

HIDDEN = "last_hidden_state"


@dataclass(frozen=True)
class Pooling:
    """Pooling of the vectors of a text's ids.

    mean: True for their mean without padding; False for the first vector.
    normalized: True if the result is scaled to length 1.
    """

    mean: bool
    normalized: bool


def read_pooling(folder: Path) -> Pooling | None:
    """Read the pooling in `modules.json`; None if absent. Raises Rejected for unsupported kinds."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = {one["type"].rsplit(".", 1)[-1]: one["path"] for one in modules}
        if "Pooling" not in kinds:
            return None
        settings = json.loads((folder / kinds["Pooling"] / "config.json").read_text())
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise Rejected(f"{folder.name}/modules.json cannot be read: {error}") from error
    modes = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value}
    others = set(kinds) - {"Transformer", "Pooling", "Normalize"}
    if others or modes not in ({"pooling_mode_mean_tokens"}, {"pooling_mode_cls_token"}):
        raise Rejected(
            f"{folder.name} computes embeddings with {', '.join(sorted(others or modes))}, which "
            "is not supported: convert it without modules.json, and pool in the client"
        )
    return Pooling(modes == {"pooling_mode_mean_tokens"}, "Normalize" in kinds)


def pooled(hidden: Any, mask: Any, pooling: Pooling) -> Any:
    """Return the embeddings of PyTorch's outputs [N, length, width]."""
    import torch

    made = hidden[:, 0]
    if pooling.mean:
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        made = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(made, dim=1) if pooling.normalized else made


def add_pooling(model: onnx.ModelProto, pooling: Pooling) -> None:
    """Replace the output of a vector per id by an output of embeddings."""
    graph = model.graph
    (hidden,) = [one for one in graph.output if one.name == HIDDEN]
    width = hidden.type.tensor_type.shape.dim[2].dim_value
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        made = EMBEDDING if name == "last" else f"{EMBEDDING}.{name}"
        nodes.append(helper.make_node(kind, inputs, [made], **attributes))
        return made

    def constant(name: str, value: Any) -> str:
        graph.initializer.append(numpy_helper.from_array(value, f"{EMBEDDING}.{name}"))
        return f"{EMBEDDING}.{name}"

    one = constant("axis", np.array([1], np.int64))
    if pooling.mean:
        mask = add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        weights = add("Unsqueeze", [mask, constant("end", np.array([-1], np.int64))], "weights")
        total = add("ReduceSum", [add("Mul", [HIDDEN, weights], "kept"), one], "sum", keepdims=0)
        count = add("ReduceSum", [weights, one], "weight", keepdims=0)
        least = constant("least", np.array(1e-9, np.float32))
        made = add("Div", [total, add("Max", [count, least], "count")], "mean")
    else:
        made = add("Gather", [HIDDEN, constant("first", np.array(0, np.int64))], "first", axis=1)
    if pooling.normalized:
        squares = add("ReduceSum", [add("Mul", [made, made], "squares"), one], "square", keepdims=1)
        small = constant("small", np.array(1e-12, np.float32))
        made = add(
            "Div", [made, add("Max", [add("Sqrt", [squares], "root"), small], "norm")], "unit"
        )
    add("Identity", [made], "last")
    graph.node.extend(nodes)
    rows = hidden.type.tensor_type.shape.dim[0].dim_param or "rows"
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, [rows, width]))
