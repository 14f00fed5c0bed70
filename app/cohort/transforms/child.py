"""Jobs that run in the process of a transform; see `cohort.system.jobs`."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from cohort.system.array_file import MAX_BYTES, ArrayFile
from cohort.system.job_child import end_copy
from cohort.tensors import Array, Arrays

STAGES = ("before", "after")
NICENESS = 5
"""Increment of the nice value, so that a busy transform gets less CPU than the server."""


class NonsenseError(TypeError):
    """An invalid transform, or a result that is not a mapping of tensors by name."""


class TransformRequest(dict[str, Array]):
    """A client's inputs by name, as a mapping and as `inputs`."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Return the inputs by name."""
        return self


class _State:
    transform: Any = None
    incoming: ArrayFile
    outgoing: ArrayFile
    most_bytes: int
    loop: asyncio.AbstractEventLoop | None = None


def load(
    target: str, folders: Sequence[str], incoming: str, outgoing: str, most_bytes: int
) -> dict[str, dict[str, Any]]:
    """Create the transform, and return its stages and declarations.

    target: `module:Class`.
    folders: Folders that are searched first for the module.
    incoming, outgoing: The files with the arrays of calls, and of their results.
    most_bytes: Maximum size of a call's result.
    """
    os.nice(NICENESS)
    sys.path[:0] = folders
    module, _, name = target.partition(":")
    kind = getattr(import_module(module), name)
    _State.transform = transform = kind() if inspect.isclass(kind) else kind
    _State.incoming, _State.outgoing = ArrayFile(incoming), ArrayFile(outgoing)
    _State.most_bytes = most_bytes
    stages = {stage: callable(getattr(transform, stage, None)) for stage in STAGES}
    if not any(stages.values()):
        raise NonsenseError(f"{target} has neither before(request) nor after(outputs)")
    return {"stages": stages, "declared": {side: _declared(transform, side) for side in SIDES}}


SIDES = ("inputs", "outputs")


def _declared(transform: Any, side: str) -> dict[str, list[Any]] | None:
    """Return the declared inputs or outputs of a class, such as {"text": ("BYTES", ["N"])}."""
    declared = getattr(transform, side, None)
    if declared is None or callable(declared):
        return None
    if not isinstance(declared, Mapping):
        raise NonsenseError(f'{side} must be a mapping such as {{"text": ("BYTES", ["N"])}}')
    return {str(name): [str(one[0]), list(one[1])] for name, one in declared.items()}


def run(stage: str, places: list[list[Any]]) -> list[Any]:
    """Call `before` or `after`, and return the places of its result in the outgoing file."""
    try:
        arrays = _State.incoming.read(places, MAX_BYTES)
    except ValueError as error:  # the class can also write to the open file
        raise NonsenseError(f"the argument of {stage} cannot be read: {error}") from error
    argument: Any = TransformRequest(arrays) if stage == STAGES[0] else arrays
    given = getattr(_State.transform, stage)(argument)
    if inspect.isawaitable(given):
        loop = _State.loop = _State.loop or asyncio.new_event_loop()
        given = loop.run_until_complete(given)
    tensors = _tensors(stage, given)
    end_copy()
    try:
        return list(_State.outgoing.write(tensors, _State.most_bytes))
    except ValueError as error:  # a ValueError of `before` would blame the client
        raise NonsenseError(f"{stage} gave what cannot be taken: {error}") from error


def _tensors(stage: str, given: Any) -> Arrays:
    if not isinstance(given, Mapping):
        raise NonsenseError(
            f"{stage} gave {type(given).__name__}, and must give a mapping of arrays by name"
        )
    return {str(name): _tensor(stage, str(name), value) for name, value in given.items()}


def _tensor(stage: str, name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise NonsenseError(f"{stage} gave no tensor for {name}: {error}") from error
    kind = array.dtype.kind
    if kind in "US":
        array = np.array(value, np.object_)
        kind = "O"
    texts = kind == "O" and all(isinstance(one, str | bytes) for one in array.reshape(-1).tolist())
    if kind not in "biufV" and not texts:
        shown = type(value).__name__
        raise NonsenseError(f"{stage} returned {shown} for {name}, which is not a tensor")
    return array
