"""Names in ONNX models that converters of classic models write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import ExportRequest
from cohort_prepare.frameworks.tables import BLOCK, SAMPLE_ROWS

GRAPH = "model"
"""Name of the main graph; converters choose a random one."""


def block_name(example: Mapping[str, Any], features: int) -> str:
    """Return the name of the only input: that of the example's only array. Raises Misused."""
    if len(example) > 1:
        raise Misused(
            f"the model has one input of {features} features, but the example has "
            f"{len(example)} arrays: {', '.join(example)}"
        )
    return next(iter(example), BLOCK)


BOOSTER_OPSET = 15
"""Maximum opset of onnxmltools 1.16."""


def write_boosters(model: Any, request: ExportRequest) -> None:
    """Write an `onnx.ModelProto` of BOOSTER_OPSET, converted to the requested opset."""
    if request.opset not in {None, BOOSTER_OPSET}:
        from onnx.version_converter import ConvertError, convert_version

        try:
            model = convert_version(model, request.opset)
        except (ConvertError, RuntimeError) as error:
            raise Rejected(
                f"the model cannot be converted to opset {request.opset}, only {BOOSTER_OPSET} "
                f"works: {error}"
            ) from error
    Path(request.out).write_bytes(model.SerializeToString(deterministic=True))


def rename_inputs(model: Any, names: Mapping[str, str]) -> None:
    """Rename inputs of an `onnx.ModelProto` in its main graph."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    for one in model.graph.input:
        one.name = names.get(one.name, one.name)


def rename_outputs(model: Any, names: Mapping[str, str]) -> None:
    """Rename outputs of an `onnx.ModelProto` in its main graph."""
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    for before, after in names.items():
        if before == after or after in taken:
            continue
        _rename(model, before, after)
        for output in model.graph.output:
            if output.name == before:
                output.name = after


def _rename(model: Any, before: str, after: str) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == before:
                    names[place] = after


def keep_second_score(model: Any) -> None:
    """Keep one score column for two classes, that of the second class.

    Converters write one column or both. The operator for support vectors has the score of the
    second class in the first column.
    """
    import onnx

    if "scores" not in {one.name for one in model.graph.output}:
        return
    place = 0 if any(one.op_type == "SVMClassifier" for one in model.graph.node) else -1
    before = "scores_by_class"
    _rename(model, "scores", before)
    index = onnx.helper.make_tensor("scores_place", onnx.TensorProto.INT64, [1], [place])
    model.graph.initializer.append(index)
    model.graph.node.append(
        onnx.helper.make_node("Gather", [before, index.name], ["scores"], axis=1)
    )
    for output in model.graph.output:
        if output.name == "scores":
            output.type.tensor_type.shape.dim[1].dim_value = 1


def tree_sample(model: Any, name: str, features: int, *, missing: bool) -> dict[str, Any]:
    """Make rows at the thresholds of the trees of an `onnx.ModelProto`, for its only input."""
    return {name: around(thresholds(model, features), SAMPLE_ROWS * 4, missing=missing)}


def thresholds(model: Any, features: int) -> list[Any]:
    """Return the thresholds of each feature in trees that read the model's input.

    They are integers if the splits are of categories.
    """
    import onnx

    found: list[set[float]] = [set() for _ in range(features)]
    categories: set[int] = set()
    inputs = {one.name for one in model.graph.input}
    for node in model.graph.node:
        if not node.op_type.startswith("TreeEnsemble") or node.input[0] not in inputs:
            continue
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        modes = attributes.get("nodes_modes", ())
        values = attributes.get("nodes_values", ())
        for feature, mode, value in zip(
            attributes.get("nodes_featureids", ()), modes, values, strict=False
        ):
            if mode != b"LEAF" and feature < features:
                found[feature].add(value)
                categories |= {feature} if mode == b"BRANCH_EQ" else set()
    return [
        np.asarray(sorted(values), np.int64 if feature in categories else np.float32)
        for feature, values in enumerate(found)
    ]


def around(thresholds: list[Any], rows: int, *, missing: bool) -> Any:
    """Make FP32 rows [rows, features] at thresholds, just below and just above them."""
    random = np.random.default_rng(0)
    columns = []
    for values in thresholds:
        if not values.size:
            columns.append(random.standard_normal(rows).astype(np.float32))
            continue
        at = values[random.integers(0, len(values), rows)]
        column = at.astype(np.float32)
        if values.dtype.kind != "i":
            spread = np.float32(np.ptp(values) or abs(float(values[0])) or 1)
            column = np.choose(
                random.integers(0, 4, rows),
                [
                    at,
                    np.nextafter(at, np.float32(-np.inf)),
                    np.nextafter(at, np.float32(np.inf)),
                    at + spread * random.standard_normal(rows).astype(np.float32),
                ],
            ).astype(np.float32)
        if missing:
            column[random.random(rows) < 0.1] = np.nan
        columns.append(column)
    return np.column_stack(columns)
