"""Alignment of inputs to the processor's vectors."""

from __future__ import annotations

import numpy as np

from cohort.batching.batch import Run
from cohort.row_independence import ALIGNMENT
from cohort.tensors import Array, Arrays


def aligned_runs(run: Run) -> Run:
    """Return a run that aligns its inputs to vectors."""
    return lambda feeds, control: run(aligned(feeds), control)


def aligned(arrays: Arrays) -> Arrays:
    """Return the arrays; those that do not begin at a vector's boundary are copied to one.

    Some kernels round numbers differently, depending on their position in a vector.
    """
    return {
        name: array if not array.ctypes.data % ALIGNMENT or array.dtype.hasobject else _moved(array)
        for name, array in arrays.items()
    }


def _moved(array: Array) -> Array:
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    moved: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved
