"""Models for the tasks of the same program, without HTTP or an open port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from math import isnan
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

import numpy as np

from cohort.codec import is_own_view
from cohort.codec.json_tensors import from_lists
from cohort.errors import InvalidInput, NotLoaded, quoted
from cohort.process.background import repeat
from cohort.process.core import Core
from cohort.process.logs import join_program
from cohort.process.model_files import GUARD_INTERVAL_SECONDS, ModelFiles
from cohort.process.running import running
from cohort.serving import AwaitedReply, Call, Exchange, Lease, Outputs, RequestContext
from cohort.settings import read_settings
from cohort.tensors import Array, Arrays, TensorSpec, check_names

A = TypeVar("A")

NO_PARAMETERS: Mapping[str, object] = MappingProxyType({})


class Runtime:
    """Loads a folder of models, watches it, and runs them; requests of all tasks share runs.

        async with Runtime(models="models") as runtime:
            outputs = await runtime.infer("iris", {"features": rows})

    models: The folder, which contains `<name>/<version>/model.onnx`.
    on_demand: True to load each model when it is first asked for; default False: load all.
    settings: Settings of `cohort serve` by their names: `rollouts`, `cache`, `max_loaded_models`.
        They override the `COHORT_*` variables. Settings of HTTP, callers and notifications have no
        effect.

    Entering it waits until the first models are loaded; it can be entered once. Its log lines go to
    the program's `logging`, with the logger `cohort`. Raises SettingsInvalid.
    """

    def __init__(
        self, models: str | Path = "models", *, on_demand: bool = False, **settings: object
    ) -> None:
        join_program()
        given = read_settings({"models": models, **settings})
        self._core = Core(given, on_demand=on_demand)
        self._files = ModelFiles(given, self._core)
        self._running: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise RuntimeError("a runtime can be entered only once; create another")
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
        """Run a model on one request. If the model is batched, requests of other tasks share the
        run.

        model: Its name; None: the default model, or the only one.
        inputs: By name: arrays of the input's datatype, or nested lists of numbers or strings.
            Arrays are not copied: do not change them before the call returns.
        version: Default None: the version chosen by a rollout, or the highest ready one.
        outputs: The names of the requested outputs; default None: all that can be sent.
        timeout: In seconds. The smaller of it and the model's timeout applies. Default None: the
            model's timeout.
        parameters: The request's parameters, such as the sequence_id of a model with state;
            default: empty.

        Returns arrays by name, in the model's order or that of `outputs`. Raises ModelNotFound,
        VersionNotFound, NotReady, InvalidInput, Overloaded, DeadlineExceeded or InferenceFailed,
        and TypeError for arguments of other types.
        """
        _check_types(model, inputs, outputs)
        if timeout is not None and isnan(timeout):
            raise InvalidInput("the timeout is not a number")
        version = None if version is None else str(version)
        return await self.ask(ArraysCall(inputs, model, version, outputs, timeout, parameters))

    async def ask(self, call: Call[A]) -> A:
        """Return the answer to a call of any form. Raises as `infer`."""
        plane, reply = self._core.data_plane, AwaitedReply[A]()
        with plane.memory.hold() as hold:
            exchange = Exchange(plane, RequestContext(), reply, hold)
            try:
                exchange.read(lambda sent: sent, call, model=call.model, version=call.version)
                return await reply.answer
            finally:
                exchange.leave()
                reply.forget()

    async def lease(self, model: str, version: str | None = None) -> Lease:
        """Lease the version that answers, to read its inputs and outputs. Raises as `infer`."""
        plane = self._core.data_plane
        pick = partial(plane.pick, model, version)
        try:
            return pick()
        except NotLoaded as error:
            return (await plane.pick_loaded(error, pick, None))[0]


class ArraysCall:
    """A request in arrays, with an answer in arrays.

    inputs: The inputs by name.
    model, version, outputs, timeout, parameters: As in `Runtime.infer`.
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
        """Return 0: arrays need no decoding."""
        return 0

    def decode(self, lease: Lease) -> Arrays:
        """Return the inputs as the version accepts them. Raises InvalidInput."""
        self._positions = lease.select(self._wanted)
        specs = lease.inputs_for(self._inputs)
        check_names(specs, self._inputs)
        return {spec.name: _array_of(spec, self._inputs[spec.name]) for spec in specs}

    def is_large(self, outputs: Outputs) -> bool:
        """Return False: nothing is encoded."""
        return False

    def encode(self, lease: Lease, outputs: Outputs) -> dict[str, Array]:
        """Return the outputs by name; parts of a larger run are copied."""
        chosen = [(lease.outputs[place].name, outputs[place]) for place in self._positions]
        return {name: one if is_own_view(one) else one.copy() for name, one in chosen}


def _check_types(model: object, inputs: object, outputs: object) -> None:
    """Raise TypeError for errors of the calling program, which do not depend on the model."""
    if model is not None and not isinstance(model, str):
        raise TypeError(f"model must be a str, not {type(model).__name__}")
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs must be a mapping of names to arrays, not {type(inputs).__name__}")
    for name in inputs:
        if not isinstance(name, str):
            raise TypeError(f"an input's name must be a str, not {type(name).__name__}")
    if isinstance(outputs, str):
        raise TypeError(f"outputs must be a list of names: [{outputs!r}], not {outputs!r}")
    if outputs is not None and not _are_names(outputs):
        raise TypeError(f"outputs must be a list of names, not {outputs!r}")


def _are_names(given: object) -> bool:
    return isinstance(given, Sequence) and all(isinstance(one, str) for one in given)


def _array_of(spec: TensorSpec, given: object) -> Array:
    """Return the given array, or the array of nested lists. Raises InvalidInput."""
    try:
        if hasattr(given, "__array__"):
            array = np.asarray(given)
            return array.astype(object) if array.dtype.kind == "U" else array
        lists = np.asarray(given, object).tolist()
    except Exception as error:
        raise InvalidInput(f"input {quoted(spec.name)} is not an array: {error}") from error
    try:
        return from_lists(spec, lists)
    except (OverflowError, ValueError) as error:  # Python's integers can exceed JSON's
        problem = f"input {quoted(spec.name)} must be {spec.datatype}, got a number out of range"
        raise InvalidInput(problem) from error
