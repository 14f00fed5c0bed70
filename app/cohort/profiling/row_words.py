"""Descriptions of the proof about a model's rows, for operators."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.errors import quoted
from cohort.row_independence import OutputRows, RowKind, RowVerdict

SCALES_BY_RUN = "DynamicQuantize"
"""Name prefix of operators that scale all rows by the largest value among them."""


EXAMPLE = "`example` in config.yaml"


def row_places(rows: RowVerdict) -> Iterator[str]:
    """Describe each input and output whose rows are not consecutive along axis 0."""
    if not rows.independent:
        return
    for name, axis in rows.inputs.items():
        if axis is None:
            yield f"input {quoted(name)}: equal in all requests of a run"
        elif axis:
            yield f"input {quoted(name)}: rows along axis {axis}"
    for name, place in rows.outputs.items():
        if place is None:
            yield f"output {quoted(name)}: the same for all requests of a run"
        elif place != OutputRows(0):
            many = "" if place.each == 1 else ", several entries each"
            yield f"output {quoted(name)}: rows along axis {place.axis}{many}"
    if rows.equal_sizes:
        yield "requests share a run if sizes with one name are equal"


def row_advice(rows: RowVerdict) -> str:
    """Return advice on how to get requests batched; "" if they are."""
    by_sizes = f"give an {EXAMPLE} of requests that you want batched: it may be proven for these"
    match rows.kind:
        case RowKind.PROVEN | RowKind.SHARED:
            return ""
        case RowKind.REFUTED if rows.node.removeprefix("com.microsoft.").startswith(SCALES_BY_RUN):
            return "quantize statically or to FP16 (cohort quantize)"
        case RowKind.REFUTED:
            if rows.by_request:
                return f"{by_sizes}; or export the model without this node"
            return "export the model without this node"
        case RowKind.RANDOM:
            return "export the model for inference, without random nodes"
        case RowKind.UNKNOWN:
            if any(rows.inputs.values()):  # trust is for rows along axis 0
                return f"{by_sizes}; or replace what is not understood"
            return (
                f"{by_sizes}; or replace what is not understood; or set batching.trust if you "
                "know better"
            )
    return "export the model with an open first dimension"
