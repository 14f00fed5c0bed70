"""Turn an exported model into one that the server accepts: valid, with variable rows and tensors.

Each step reports problems; no step changes the model's results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx.helper import set_model_props

from cohort.comparing import ROUNDING, Pair, explain
from cohort.errors import CohortError, LoadFailed, quoted
from cohort.model_file.model import read_model
from cohort.profiling import find_trial, synthetic_inputs
from cohort.session import Session, open_session
from cohort.session.class_maps import Classes, find_class_maps, with_columns
from cohort.session.declared_classes import CLASSES_KEY
from cohort.session.declared_inputs import CATEGORIES_KEY, COLUMNS_KEY, MISSING_KEY
from cohort_prepare.evaluating.cases import run_alone, run_named
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks.onnx_values import ROWS
from cohort_prepare.onnx_files import read_onnx, write_onnx_to

MAX_OPSET, MAX_IR_VERSION = 26, 13
"""Maximum versions that ONNX Runtime 1.31 accepts."""

DEFAULT_OPSET = 21
"""Opset for a model that uses only the ai.onnx.ml domain."""


def replace_class_maps(path: Path) -> Mapping[str, Classes]:
    """Replace a classifier's dictionaries by tensors; return the classes of their columns."""
    model = read_model(path, sys.maxsize)
    maps = find_class_maps(model.graphs.main.nodes, model.sequences)
    if maps:
        path.write_bytes(with_columns(path, maps))
    return maps


def check_export(path: Path, opset: int = DEFAULT_OPSET) -> onnx.ModelProto:
    """Read an exported model. Raises Rejected if it is invalid or too new.

    opset: ONNX opset version to declare if the model uses no standard operator.
    """
    model = read_onnx(path)
    for one in model.opset_import:
        if one.domain in {"", "ai.onnx"} and one.version > MAX_OPSET:
            raise Rejected(
                f"the exporter wrote opset {one.version}, but ONNX Runtime supports at most "
                f"{MAX_OPSET}: add --opset {MAX_OPSET} or lower"
            )
    if not onnx_opset(model):
        model.opset_import.add(domain="", version=opset)
    oldest = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    model.ir_version = min(max(model.ir_version, oldest), MAX_IR_VERSION)
    write_onnx_to(model, path)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # several types, raised by C++
        raise Rejected(_invalid(model, error)) from error
    check_interface(model)
    return model


def _invalid(model: onnx.ModelProto, error: Exception) -> str:
    opset = onnx_opset(model)
    text = " ".join(str(error).split())[:500]
    hint = ""
    if opset == 17 and "Split" in text:
        hint = "; PyTorch writes an invalid Split at opset 17: add --opset 18"
    elif opset < 18:
        hint = "; a higher --opset may help"
    return f"the exporter wrote invalid ONNX (opset {opset}): {text}{hint}"


def onnx_opset(model: onnx.ModelProto) -> int:
    """Return the version of the standard ONNX opset; 0 if the model does not use it."""
    versions = [one.version for one in model.opset_import if one.domain in {"", "ai.onnx"}]
    return max(versions, default=0)


_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


def check_interface(model: onnx.ModelProto) -> None:
    """Raise Rejected if a name of an input or output is unusable in requests."""
    defaults = {one.name for one in model.graph.initializer}
    inputs = [one.name for one in model.graph.input if one.name not in defaults]
    outputs = [one.name for one in model.graph.output]
    for kind, names in (("input", inputs), ("output", outputs)):
        for name in names:
            if not _NAME.fullmatch(name):
                raise Rejected(
                    f"{kind} {quoted(name)} has a name that requests cannot use: rename it in the "
                    "model"
                )
            if names.count(name) > 1:
                raise Rejected(f"{kind} {quoted(name)} exists twice")


def open_exported(path: Path) -> Session:
    """Open the model as the server does. Raises Rejected."""
    try:
        return open_session(path)
    except LoadFailed as error:
        hint = ""
        if "locale" in str(error):
            hint = (
                "; a model with text needs the locale en_US.UTF-8, here and on the server: "
                "apt-get install locales-all"
            )
        raise Rejected(f"ONNX Runtime cannot open the exported model: {error}{hint}") from error


def open_rows(model: onnx.ModelProto, folder: Path) -> str:
    """Make a first dimension variable if it need not be fixed; return why it stays fixed, or "".

    Tests that with runs of one, two and three rows. Changes `model` if they succeed.
    """
    defaults = {one.name for one in model.graph.initializer}
    values = [one for one in model.graph.input if one.name not in defaults]
    fixed = {_first(one) for one in [*values, *model.graph.output]} - {0}
    if len(fixed) != 1 or None in fixed:  # variable, or no rows
        return ""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    for one in [*opened.graph.input, *opened.graph.output]:
        if one.name not in defaults and _first(one) in fixed:
            one.type.tensor_type.shape.dim[0].dim_param = ROWS
    del opened.graph.value_info[:]
    path = folder / "open.onnx"
    write_onnx_to(opened, path)
    (size,) = fixed
    try:
        _check_rows(open_session(path))
    except CohortError as error:
        return f"its first dimension is fixed at {size} and cannot be variable: {error}"
    model.CopyFrom(opened)
    return ""


def _first(value: onnx.ValueInfoProto) -> int | None:
    """Return the fixed length of the first dimension; 0 if it is variable, None for a scalar."""
    dimensions = value.type.tensor_type.shape.dim
    if not value.type.HasField("tensor_type") or not dimensions:
        return None
    return dimensions[0].dim_value if dimensions[0].HasField("dim_value") else 0


def _check_rows(session: Session) -> None:
    """Raise Rejected unless runs of several rows give the same as runs of one."""
    trial = find_trial(session.run, session.inputs)
    if trial.problem:
        raise Rejected(trial.problem)
    for rows in (2, 3):
        feeds = synthetic_inputs(session.inputs, rows, trial.length)
        if reason := explain(Pair(run_alone(session, feeds), run_named(session, feeds)), ROUNDING):
            raise Rejected(f"with {rows} rows in one run, {reason}")


def write_description(
    model: onnx.ModelProto,
    *,
    graph_name: str,
    classes: Mapping[str, Sequence[str | int]],
    columns: Sequence[str] = (),
    missing: Mapping[str, str] = MappingProxyType({}),
    categories: Mapping[str, Sequence[str] | Sequence[float]] = MappingProxyType({}),
) -> None:
    """Write the graph's name, the classes and descriptions of columns into the model.

    columns: Column names of the only input; default: unknown.
    missing: Value for a missing one, by input; default none.
    categories: Words or numbers whose positions are codes, by column or input; default none.
    """
    model.graph.name = graph_name
    properties = {one.key: one.value for one in model.metadata_props}
    if classes:
        properties[CLASSES_KEY] = json.dumps(
            {name: list(these) for name, these in sorted(classes.items())}, ensure_ascii=False
        )
    if columns:
        properties[COLUMNS_KEY] = json.dumps(list(columns), ensure_ascii=False)
    if missing:
        properties[MISSING_KEY] = json.dumps(dict(missing), ensure_ascii=False, sort_keys=True)
    if categories:
        properties[CATEGORIES_KEY] = json.dumps(
            {name: list(known) for name, known in categories.items()}, ensure_ascii=False
        )
    set_model_props(model, dict(sorted(properties.items())))


def splits_by_category(model: onnx.ModelProto) -> bool:
    """Return True if its trees compare category codes, whose order means nothing."""
    return any(
        b"BRANCH_EQ" in attribute.strings
        for node in model.graph.node
        if node.op_type.startswith("TreeEnsemble")
        for attribute in node.attribute
    )


def scores_of(model: onnx.ModelProto, classes: int) -> str:
    """Return the name of the output that has a column for each class. Raises Misused."""
    fitting, shapes = [], []
    for output in model.graph.output:
        tensor = output.type.tensor_type
        sizes = [one.dim_value or one.dim_param or "?" for one in tensor.shape.dim]
        shapes.append(f"{output.name} [{', '.join(map(str, sizes))}]")
        if tensor.elem_type in FLOATS and len(sizes) > 1 and sizes[-1] in {classes, "?"}:
            fitting.append(output.name)
    if not fitting:
        raise Misused(
            f"--classes names {classes} classes, but no float output has {classes} columns: "
            f"{', '.join(shapes)}"
        )
    return fitting[0]


FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})
