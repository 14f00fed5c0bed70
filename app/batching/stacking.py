"""Requests' arrays put together for one run, and its outputs cut apart again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.batching.policy import QueuedRequest
from app.tensors import Array, Arrays

Outputs = list[Array]


class RowsDoNotFollow(Exception):
    """An output does not have one row per input row, so nobody can be told which is theirs."""


def join(requests: Sequence[Arrays]) -> Arrays:
    """Put requests with the same names, datatypes and row shapes under each other."""
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}


def split(outputs: Outputs, requests: Sequence[QueuedRequest], rows: int) -> list[Outputs]:
    """BatchDecision each output along axis 0 into one part per request, as views.

    Raises RowsDoNotFollow where an output does not have one row per input row.
    """
    for position, output in enumerate(outputs):
        if not _has_rows(output, rows):
            shape = getattr(output, "shape", "unknown")
            raise RowsDoNotFollow(f"{rows} input rows gave output {position} of shape {shape}")
    parts = []
    start = 0
    for request in requests:
        end = start + request.rows
        parts.append([output[start:end] for output in outputs])
        start = end
    return parts


def _has_rows(output: object, rows: int) -> bool:
    # A model may also give sequences and maps, whatever the annotation of its run says.
    return isinstance(output, np.ndarray) and output.ndim > 0 and output.shape[0] == rows
