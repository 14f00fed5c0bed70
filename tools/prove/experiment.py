"""Rows together in one run against each row alone, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from cohort.row_independence import OutputRows, RowVerdict
from cohort.row_independence.operation import OperatorName

Array = NDArray[Any]
Row = Mapping[str, Array]
"""The inputs of one row; inputs without rows are the same in all."""

Draw = Callable[[int], Sequence[Row]]
"""Makes the rows of a trial from its number."""


@dataclass(frozen=True, slots=True)
class RowCase:
    """A model with rows along an axis of some of its inputs.

    axes: The axis of each input; None: it has no rows.
    operator: The operator that it tests, by domain and name; None: several.
    """

    name: str
    model: onnx.ModelProto
    axes: Mapping[str, int | None]
    draw: Draw
    operator: OperatorName | None = None


RELATIVE, OF_LARGEST = 2e-3, 2e-4
"""Allowed rounding of an element, and of the largest one of its output."""

SILENT = 4


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of some trials.

    ran: Number of trials that could be run, each row alone.
    difference: Difference of rows together from rows alone; "" if they are equal.
    """

    ran: int
    difference: str = ""


def open_session(model: bytes, *, optimized: bool = True) -> Any:
    """Return a session of ONNX Runtime on one thread, which prints nothing."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = SILENT
    if not optimized:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def try_rows(session: Any, verdict: RowVerdict, draw: Draw, trials: int) -> Tried:
    """Compare rows together with rows alone.

    verdict: Where the rows of inputs are, and those of outputs, which are expected along axis 0
        where the verdict does not say.
    trials: Number of trials; the first that differs is the last.
    """
    ran = 0
    for trial in range(trials):
        rows = draw(trial)
        try:
            alone = [session.run(None, dict(row)) for row in rows]
        except Exception:  # noqa: BLE001  a row that fails alone shows nothing
            continue
        ran += 1
        try:
            together = session.run(None, stack(rows, verdict.inputs))
        except Exception as error:  # noqa: BLE001
            return Tried(ran, f"together it fails: {str(error)[:200]}")
        names = [one.name for one in session.get_outputs()]
        for place, (name, output) in enumerate(zip(names, together, strict=True)):
            where = verdict.outputs.get(name, OutputRows(0))
            single = [_columns(outputs[place]) for outputs in alone]
            if problem := _difference(_columns(output), single, where):
                return Tried(ran, f"{name}: {problem}")
    return Tried(ran)


def stack(rows: Sequence[Row], axes: Mapping[str, int | None]) -> dict[str, Array]:
    """The inputs of one run of these rows; of an input without rows, those of the first row."""
    return {
        name: array
        if (axis := axes.get(name)) is None
        else np.concatenate([row[name] for row in rows], axis)
        for name, array in rows[0].items()
    }


def _columns(output: Any) -> Any:
    """Return the columns that a list of dictionaries is made of; anything else as it is."""
    if isinstance(output, list) and all(isinstance(row, dict) for row in output):
        return np.array([list(row.values()) for row in output])
    return output


def _difference(output: Any, alone: Sequence[Any], where: OutputRows | None) -> str:
    if not isinstance(output, np.ndarray):
        return "it is not a tensor"
    if where is None:
        return "" if all(alike(output, one) for one in alone) else "it is not the same for all"
    count, axis = len(alone), where.axis
    if output.ndim <= axis or output.shape[axis] % count:
        return f"its shape is {output.shape} for {count} rows"
    each = output.shape[axis] // count
    for number, expected in enumerate(alone):
        part = np.take(output, range(number * each, (number + 1) * each), axis)
        if part.shape != expected.shape:
            return f"row {number} has shape {part.shape}, alone {expected.shape}"
        if not alike(part, expected):
            return f"row {number} differs by {_gap(part, expected):g}"
    return ""


def alike(one: Array, other: Array) -> bool:
    """Return True if two arrays differ by no more than rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    finite = np.abs(other[np.isfinite(other)].astype(float))
    slack = OF_LARGEST * max(finite.max(initial=0.0), 1e-3)
    if one.dtype == np.float16:
        slack *= 16
    with np.errstate(all="ignore"):
        return bool(np.allclose(one, other, RELATIVE, slack, equal_nan=True))


def _gap(one: Array, other: Array) -> float:
    if one.dtype.kind not in "fiub":
        return float("nan")
    with np.errstate(all="ignore"):
        return float(np.nanmax(np.abs(one.astype(float) - other.astype(float)), initial=0.0))
