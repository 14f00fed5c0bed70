"""Concatenate the inputs of several requests, and split the outputs of their run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.batching.policy import QueuedRequest
from app.tensors import Array, Arrays

Outputs = list[Array]
"""The outputs of a run, in the model's order."""


class RowsDoNotFollow(Exception):
    """An output does not have one row per input row, so it cannot be split by request."""


def join(requests: Sequence[Arrays]) -> Arrays:
    """Concatenate inputs with the same names, datatypes and row shapes along axis 0."""
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}


def split(outputs: Outputs, requests: Sequence[QueuedRequest], rows: int) -> list[Outputs]:
    """Split each output along axis 0 into one part per request, as views.

    Raises RowsDoNotFollow where an output does not have one row per input row.
    """
    for position, output in enumerate(outputs):
        if not rows_follow(output, rows):
            shape = getattr(output, "shape", "unknown")
            raise RowsDoNotFollow(f"{rows} input rows gave output {position} of shape {shape}")
    parts = []
    start = 0
    for request in requests:
        end = start + request.rows
        parts.append([output[start:end] for output in outputs])
        start = end
    return parts


def rows_follow(output: object, rows: int) -> bool:
    """Whether an output has as many rows as its run."""
    # The outputs of a model may also be sequences and maps, which the annotation omits.
    return isinstance(output, np.ndarray) and output.ndim > 0 and output.shape[0] == rows
