"""Rules for sharing runs and for joining requests, from the model's file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cohort.batching import FIRST_AXIS, BatchPolicy, RowPlan, SizePlace, Stacking
from cohort.errors import quoted
from cohort.row_independence import OutputRows, RequestKind, RowKind, RowVerdict
from cohort.tensors import Arrays, TensorSpec

NO_POLICY = BatchPolicy()


def why_unbatchable(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    rows: RowVerdict,
    policy: BatchPolicy = NO_POLICY,
) -> str:
    """Return why requests cannot share a run, based on the model's file; "" if they can.

    rows: The verdict on the independence of rows.
    policy: The batch policy of the model's config; `trust` is the operator's claim that rows are
        independent.
    """
    if reason := _why_not_tensors(inputs, outputs):
        return reason
    if rows.independent:
        return _why_not_covered(inputs, outputs, rows)
    if policy.exact and policy.trust:
        return f"{rows} (batching.exact needs a proof, and batching.trust is none)"
    if rows.kind is RowKind.FIXED:
        return why_rows_are_fixed(inputs, outputs) or str(rows)
    return _why_dependent(rows, policy) or why_rows_are_fixed(inputs, outputs)


def why_rows_are_fixed(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Return why runs cannot have any number of rows along axis 0; "" if they can."""
    if reason := _why_not_tensors(inputs, outputs):
        return reason
    for name, spec in _named(inputs, outputs):
        if spec.shape is None:
            return f"the file does not declare the number of dimensions of {name}"
        if not spec.shape:
            return f"{name} has no rows"
        if not spec.rows_vary:
            return f"{name} has a fixed first dimension, {spec.shape[0]}"
    return ""


def plan_rows(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rows: RowVerdict
) -> Stacking:
    """Return how requests are joined and split, by the proof; along axis 0 without a proof."""
    if not rows.independent or is_along_axis_0(rows):
        return FIRST_AXIS
    equal = _twins(inputs, rows) if rows.equal_sizes else ()
    plan = RowPlan(rows.inputs, [rows.outputs[spec.name] for spec in outputs], equal)
    keys = [plan.rows_and_key(_like(inputs, kind))[1] for kind in rows.requests]
    return replace(plan, only=frozenset(keys))


def is_along_axis_0(rows: RowVerdict) -> bool:
    """Return True if all inputs and outputs have rows along axis 0, without other conditions."""
    first = all(axis == 0 for axis in rows.inputs.values())
    follow = all(place == OutputRows(0) for place in rows.outputs.values())
    return first and follow and not rows.equal_sizes and not rows.requests


def _why_not_tensors(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    if not inputs:
        return "it has no inputs"
    for name, spec in _named(inputs, outputs):
        if not spec.transportable:
            return f"{name} is {spec.datatype}, not a tensor"
    return ""


def _named(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Iterator[tuple[str, TensorSpec]]:
    """Yield each input and output with its name for messages."""
    yield from ((f"input {spec.name!r}", spec) for spec in inputs)
    yield from ((f"output {spec.name!r}", spec) for spec in outputs)


def _why_not_covered(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rows: RowVerdict
) -> str:
    if is_along_axis_0(rows):
        return ""
    known = rows.inputs.keys() | rows.outputs.keys()
    unknown = [name for name, spec in _named(inputs, outputs) if spec.name not in known]
    return f"the file does not show where the rows of {unknown[0]} are" if unknown else ""


UNKNOWN_HINT = "if you know that they are, batching.trust: true batches requests"
REFUTED_HINT = "batching.trust: refuted batches requests, and lets them change each other's answers"


def _why_dependent(rows: RowVerdict, policy: BatchPolicy) -> str:
    match rows.kind:
        case _ if policy.trust and (elsewhere := [n for n, axis in rows.inputs.items() if axis]):
            names = ", ".join(map(quoted, elsewhere))
            return (
                f"{rows} (batching.trust does not help: rows of {names} are not along axis 0; "
                "without it, an `example` may be proven)"
            )
        case RowKind.REFUTED | RowKind.RANDOM if policy.trust == "refuted":
            return ""
        case RowKind.REFUTED:
            return f"{rows} ({REFUTED_HINT})"
        case RowKind.UNKNOWN if policy.trust:
            return ""
        case RowKind.UNKNOWN if any(rows.inputs.values()):
            return str(rows)
        case RowKind.UNKNOWN:
            return f"{rows} ({UNKNOWN_HINT})"
    return str(rows)


def _like(inputs: Sequence[TensorSpec], kind: RequestKind) -> Arrays:
    """Return a request of this kind, of one row."""
    made: Arrays = {}
    for spec in inputs:
        shape = kind.shapes[spec.name]
        if spec.name in kind.values:
            made[spec.name] = np.asarray(kind.values[spec.name], spec.dtype).reshape(shape)
        else:
            made[spec.name] = np.broadcast_to(np.zeros((), spec.dtype), shape)
    return made


def _twins(inputs: Sequence[TensorSpec], rows: RowVerdict) -> list[list[SizePlace]]:
    """Return the groups of input axes, without rows, whose sizes have the same name."""
    places: defaultdict[str, list[SizePlace]] = defaultdict(list)
    for spec in inputs:
        for axis, size in enumerate(spec.shape or ()):
            if isinstance(size, str) and axis != rows.inputs[spec.name]:
                places[size].append((spec.name, axis))
    return [each for each in places.values() if len(each) > 1]
