"""Inputs that begin where a vector of the processor does."""

from __future__ import annotations

import numpy as np

from cohort.batching.batch import Run
from cohort.row_independence import ALIGNMENT
from cohort.tensors import Array, Arrays


def aligned_runs(run: Run) -> Run:
    """Runs of inputs that begin where a vector does."""
    return lambda feeds, control: run(aligned(feeds), control)


def aligned(arrays: Arrays) -> Arrays:
    """The same arrays, those that begin within a vector copied to where one begins.

    Some kernels round by where in a vector a number is.
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
