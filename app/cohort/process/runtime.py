"""Models served to tasks of the same program: no port is opened, and nothing of HTTP is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from math import isnan
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from cohort.codec import is_own_view
from cohort.codec.json_tensors import from_lists
from cohort.errors import InvalidInput, quoted
from cohort.process.background import repeat
from cohort.process.core import Core
from cohort.process.logs import join_program
from cohort.process.model_files import GUARD_INTERVAL_SECONDS, ModelFiles
from cohort.process.running import running
from cohort.serving import AwaitedReply, Exchange, Lease, Outputs, RequestContext
from cohort.settings import read_settings
from cohort.tensors import Array, Arrays, TensorSpec, check_names

NO_PARAMETERS: Mapping[str, object] = MappingProxyType({})


class Runtime:
    """Loads a folder of models, watches it, and runs them; requests of all tasks share runs.

        async with Runtime(models="models") as runtime:
            outputs = await runtime.infer("iris", {"features": rows})

    models: The folder, which holds `<name>/<version>/model.onnx`.
    settings: As `cohort serve` has them, by their names: `rollouts`, `cache`, `max_loaded_models`.
        They override the `COHORT_*` variables. Those of HTTP, callers and notifications do nothing.

    Entering it waits until the first models are loaded; it is entered once. What it logs goes to
    the program's own `logging`, by the logger `cohort`. Raises SettingsInvalid.
    """

    def __init__(self, models: str | Path = "models", **settings: object) -> None:
        join_program()
        given = read_settings({"models": models, **settings})
        self._core = Core(given)
        self._files = ModelFiles(given, self._core)
        self._running: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise RuntimeError("a runtime is entered once: make another")
        self._running = AsyncExitStack()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._running_core())
            await self._core.registry.first_loaded()
            self._running = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._running is not None:
            await self._running.__aexit__(kind, error, trace)

    def _running_core(self) -> AbstractAsyncContextManager[None]:
        judging = partial(repeat, self._files.rollouts.step, GUARD_INTERVAL_SECONDS)
        return running(self._core, self._files, [judging])

    async def infer(
        self,
        model: str | None,
        inputs: Mapping[str, object],
        *,
        version: str | int | None = None,
        outputs: Sequence[str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the engine keeps it, as for every API
        parameters: Mapping[str, object] = NO_PARAMETERS,
    ) -> dict[str, Array]:
        """Run a model on one request, batched with those of other tasks where it is batched.

        model: Its name; None: the default model, or the only one.
        inputs: By name: arrays of the input's datatype, or nested lists of numbers or texts.
            Arrays are not copied: change none before the answer is there.
        version: Default None: the one that a rollout chooses, or the highest that is ready.
        outputs: The names of those that are wanted; default None: all that can be sent.
        timeout: In seconds; the smaller of it and the model's own applies. Default None: that.
        parameters: The request's, such as the sequence_id of a model with state; default: none.

        Returns arrays by name, in the model's order or that of `outputs`. Raises ModelNotFound,
        VersionNotFound, NotReady, InvalidInput, Overloaded, DeadlineExceeded or InferenceFailed,
        and TypeError for arguments of other types.
        """
        _check_types(model, inputs, outputs)
        if timeout is not None and isnan(timeout):
            raise InvalidInput("the timeout is not a number")
        version = None if version is None else str(version)
        plane, reply = self._core.data_plane, AwaitedReply[dict[str, Array]]()
        call = ArraysCall(inputs, model, version, outputs, timeout, parameters)
        with plane.memory.hold() as hold:
            exchange = Exchange(plane, RequestContext(), reply, hold)
            try:
                exchange.read(lambda sent: sent, call, model=model, version=version)
                return await reply.answer
            finally:
                exchange.leave()
                reply.forget()


class ArraysCall:
    """A request in arrays, whose answer is arrays.

    inputs: By name.
    model, version, outputs, timeout, parameters: As `Runtime.infer` has them.
    """

    label: str | None = None
    beside = 0

    def __init__(
        self,
        inputs: Mapping[str, object],
        model: str | None,
        version: str | None,
        outputs: Sequence[str] | None,
        timeout: float | None,
        parameters: Mapping[str, object] = NO_PARAMETERS,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.version = version
        self.timeout = timeout
        self._inputs = inputs
        self._wanted = outputs
        self._positions: Sequence[int] = ()

    def decode_work(self, lease: Lease) -> int:
        """None: arrays are taken as they are."""
        return 0

    def decode(self, lease: Lease) -> Arrays:
        """The inputs as the version takes them. Raises InvalidInput."""
        self._positions = lease.select(self._wanted)
        specs = lease.inputs_for(self._inputs)
        check_names(specs, self._inputs)
        return {spec.name: _array_of(spec, self._inputs[spec.name]) for spec in specs}

    def is_large(self, outputs: Outputs) -> bool:
        """No: nothing is written."""
        return False

    def encode(self, lease: Lease, outputs: Outputs) -> dict[str, Array]:
        """The outputs by name; one that is a part of a larger run is copied out of it."""
        chosen = [(lease.outputs[place].name, outputs[place]) for place in self._positions]
        return {name: one if is_own_view(one) else one.copy() for name, one in chosen}


def _check_types(model: object, inputs: object, outputs: object) -> None:
    """Raise TypeError for what is a slip of the program, and would be looked for in the model."""
    if model is not None and not isinstance(model, str):
        raise TypeError(f"model is a name, not {type(model).__name__}")
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs are arrays by name, not {type(inputs).__name__}")
    for name in inputs:
        if not isinstance(name, str):
            raise TypeError(f"an input's name is a text, not {type(name).__name__}")
    if isinstance(outputs, str):
        raise TypeError(f"outputs are names: [{outputs!r}], not {outputs!r}")
    if outputs is not None and not _are_names(outputs):
        raise TypeError(f"outputs are a list of names, not {outputs!r}")


def _are_names(given: object) -> bool:
    return isinstance(given, Sequence) and all(isinstance(one, str) for one in given)


def _array_of(spec: TensorSpec, given: object) -> Array:
    """The array that is given, or that nested lists make. Raises InvalidInput."""
    try:
        if hasattr(given, "__array__"):
            array = np.asarray(given)
            return array.astype(object) if array.dtype.kind == "U" else array
        lists = np.asarray(given, object).tolist()
    except Exception as error:
        raise InvalidInput(f"input {quoted(spec.name)} is no array: {error}") from error
    try:
        return from_lists(spec, lists)
    except (OverflowError, ValueError) as error:  # JSON has no integers as long as Python's
        problem = f"input {quoted(spec.name)} takes {spec.datatype}, got a number out of range"
        raise InvalidInput(problem) from error
