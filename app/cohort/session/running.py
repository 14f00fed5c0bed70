"""An open model and its runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any
from weakref import WeakSet

import numpy as np

from cohort.errors import CohortError, InferenceFailed, InvalidInput, quoted
from cohort.model_file.model import Metadata
from cohort.row_independence import RowVerdict
from cohort.session.assignment import AssignedNode, list_nodes
from cohort.session.child_runs import ChildRuns
from cohort.session.failures import run_failure
from cohort.session.runtime import ort
from cohort.session.signatures import Signature
from cohort.session.texts import (
    TEXTS_AT_ONCE,
    Bound,
    TextReader,
    bound_texts,
    gives_texts,
    hold_texts,
    is_text,
)
from cohort.tensors import (
    BY_NAME,
    Array,
    Datatype,
    TensorSpec,
    check_names,
    pack,
    sent_specs,
    unpack,
)

_OrtValue: Any = ort.capi.onnxruntime_pybind11_state.OrtValue
_Run = Callable[[Sequence[str], Mapping[str, Array], Any], list[Array]]


@dataclass(frozen=True, slots=True)
class Fallback:
    """A wanted provider that is not active, and the reason.

    missed: True if it should be active: it is unavailable, or the model's config names it. False
        if it is a default provider that does not suit the model.
    """

    provider: str
    reason: str
    missed: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """The execution providers of a session, by their short names.

    wanted: The provider chain of the config, in order of preference.
    active: The provider in use.
    fallbacks: The providers before it that could not be used, each with the reason; default none.
    nodes: The number of the model's nodes by provider, before fusion; empty if the runtime does
        not report it or every node was computed at load.
    """

    wanted: tuple[str, ...]
    active: str
    fallbacks: tuple[Fallback, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def fell_back(self) -> bool:
        """True if a provider is missed: another link serves, perhaps of the same provider."""
        return any(fallback.missed for fallback in self.fallbacks)

    @property
    def reason(self) -> str:
        """The reason why the active provider is not the first wanted one, or ""."""
        return "; ".join(f"{fallback.provider}: {fallback.reason}" for fallback in self.fallbacks)

    @property
    def footnote(self) -> str:
        """`reason` as text to display next to the active provider."""
        return f"instead of {self.reason}" if self.fell_back else self.reason


# Shared by runs that cannot be stopped: with None, ONNX Runtime creates one per run (0.4 µs).
_PLAIN: Any = ort.RunOptions()


CPU_DEVICE = "cpu"

SHRINK = ("memory.enable_memory_arena_shrinkage", "cpu:0")


class OrtRunControl:
    """A control that stops one run, or several at once."""

    __slots__ = ("options",)

    def __init__(self) -> None:
        self.options: Any = ort.RunOptions()

    def stop(self) -> None:
        """Stop the run before its next node, or before it starts. Any thread may call it."""
        self.options.terminate = True


class Session:
    """An open ONNX model. Any number of threads may `run` it at once.

    raw: The InferenceSession of ONNX Runtime.
    inputs, outputs: The specs, in the model's order.
    optional_inputs: The specs of inputs that have a default in the model.
    metadata: The metadata in the model's file.
    placement: The execution providers wanted and active.
    device: The device that runs use, such as "cpu" or "cuda:0".
    rows: The verdict on whether rows of a run influence each other, and on whether its cost depends
        on the inputs' values. If the cost does, the memory of a run is released after it.
    tables: The number of entries of each table that an input indexes, by the input's name.
    needs_entries: True if a run of an empty input would kill the process; such runs are refused.
    memory_limit_mb: The memory limit of the session, for errors; default None: no limit.
    max_output_bytes: The maximum bytes of the texts of a run; default: no limit.
    elsewhere: The process that runs the model, closed with the session; default None: this process.
    """

    __slots__ = (
        "__weakref__", "_elsewhere", "_max_output_bytes", "_memory_limit_mb", "_names", "_nodes",
        "_raw", "_run", "device", "inputs", "metadata", "optional_inputs", "outputs", "placement",
        "rows", "tables",
    )  # fmt: skip

    def __init__(
        self,
        raw: Any,
        *,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        optional_inputs: tuple[TensorSpec, ...] = (),
        metadata: Metadata,
        placement: Placement,
        device: str,
        rows: RowVerdict,
        tables: Mapping[str, int],
        needs_entries: bool,
        memory_limit_mb: int | None = None,
        max_output_bytes: float = float("inf"),
        elsewhere: ChildRuns | None = None,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.optional_inputs = optional_inputs
        self.metadata, self.placement, self.device = metadata, placement, device
        self.rows, self.tables = rows, tables
        self._memory_limit_mb, self._max_output_bytes = memory_limit_mb, max_output_bytes
        self._names = [spec.name for spec in outputs if spec.transportable]
        self._raw, self._elsewhere = raw, elsewhere
        self._nodes: Sequence[AssignedNode] | None = None
        self._run: _Run
        if elsewhere is None:
            self._run = self._run_here()
        else:
            self._run, self._raw, self._nodes = elsewhere.run, None, [*list_nodes(raw)]
        if len(self._names) < len(outputs):
            self._run = _leave_out(self._run, outputs)
        if any(spec.classes for spec in outputs):
            self._run = _check_columns(self._run, outputs)
        if needs_entries:
            self._run = _refuse_empty(self._run)
        if device == CPU_DEVICE and elsewhere is None:
            with _adding:
                _sessions.add(self)

    def _run_here(self) -> _Run:
        # Use the C++ object of `raw`: the Python `run` costs 1 µs more, prints, and falls back.
        run: _Run = self._raw._sess.run
        if any(map(_needs_ortvalue, self.outputs)):
            run = self._run_with_ortvalues
        elif any(map(_needs_ortvalue, (*self.inputs, *self.optional_inputs))):
            run = self._run_fed_ortvalues
        if gives_texts(self.outputs):
            bound = bound_texts(self.outputs, self.rows)
            run = _choose_by_texts(bound, run, self._run_with_ortvalues)
        return run

    @property
    def signature(self) -> Signature:
        """The inputs and outputs, as callers see them."""
        return Signature(self.inputs, self.outputs, self.optional_inputs, self.tables)

    @property
    def raw(self) -> Any:
        """The InferenceSession of ONNX Runtime, for runs on bound memory; None if it is closed."""
        return self._raw

    @property
    def unpredictable(self) -> str:
        """The reason why the cost of a run depends on the inputs' values; "" if it does not."""
        return self.rows.dependence

    def run(self, feeds: Mapping[str, Array], control: OrtRunControl | None = None) -> list[Array]:
        """Run the model, and return all `outputs` in order; `LEFT_OUT` replaces non-tensors.

        `feeds` has all of `inputs`, and any of `optional_inputs`.

        Raises InvalidInput or InferenceFailed, the latter also if `control` stopped the run. The
        arrays may be non-contiguous; their datatypes must be the inputs' in native byte order.
        """
        if len(feeds) != len(self.inputs):
            check_names(self._specs_of(feeds), feeds)
        try:
            for array in feeds.values():
                if not array.dtype.isnative:  # would be read as wrong numbers
                    raise InvalidInput("an input is not in this machine's byte order")
            return self._run(self._names, feeds, _PLAIN if control is None else control.options)
        except Exception as error:
            raise run_failure(error, self._memory_limit_mb) from error

    def control(self, *, shrink: bool = False) -> OrtRunControl:
        """Return a new OrtRunControl for a run; `shrink` releases the run's memory after it."""
        control = OrtRunControl()
        if (shrink or self.unpredictable) and self.device == CPU_DEVICE:
            control.options.add_run_config_entry(*SHRINK)
        return control

    def give_back(self, feeds: Mapping[str, Array]) -> None:
        """Release the memory of earlier runs, which the session keeps for later runs.

        `feeds` are valid inputs. They are not run: a run that is stopped before its first node
        releases memory like any other run.
        """
        if self.device == CPU_DEVICE and self._elsewhere is None:
            control = self.control(shrink=True)
            control.stop()
            with suppress(CohortError, AttributeError):  # AttributeError: it was closed
                self.run(feeds, control)

    def assigned_nodes(self) -> Iterator[AssignedNode]:
        """Iterate over the nodes that `placement` counts."""
        return list_nodes(self._raw) if self._nodes is None else iter(self._nodes)

    def close(self) -> None:
        """Free the model. Runs in flight finish, but not those in another process."""
        self._run = _closed
        self._raw = None
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _run_fed_ortvalues(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: Any
    ) -> list[Array]:
        """Run with OrtValues for inputs whose datatypes numpy does not have."""
        arrays = self._contiguous(feeds)
        values = {
            spec.name: ort.OrtValue(_to_ortvalue(array, spec)) if _needs_ortvalue(spec) else array
            for spec, array in arrays
        }
        outputs: list[Array] = self._raw._sess.run(names, values, options)
        return outputs

    def _run_with_ortvalues(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: Any
    ) -> list[Array]:
        """Run with OrtValues only; outputs of such datatypes or with many texts require it."""
        arrays = self._contiguous(feeds)
        values = {spec.name: _to_ortvalue(array, spec) for spec, array in arrays}
        values_out = self._raw._sess.run_with_ort_values(values, names, options)
        fed = {value.data_ptr() for value in values.values()}
        texts = TextReader(self._max_output_bytes, lambda: bool(options.terminate))
        transportable = [spec for spec in self.outputs if spec.transportable]
        # By number: iterating over the runtime's vector takes 30 µs.
        return [
            texts.read(values_out[number])
            if is_text(spec)
            else _from_ortvalue(values_out[number], spec, fed)
            for number, spec in enumerate(transportable)
        ]

    def _contiguous(self, feeds: Mapping[str, Array]) -> list[tuple[TensorSpec, Array]]:
        """Return contiguous arrays. Hold them during the run: an OrtValue only points into them."""
        specs = self._specs_of(feeds)
        return [(spec, np.asarray(feeds[spec.name], order="C")) for spec in specs]

    def _specs_of(self, feeds: Mapping[str, Array]) -> Sequence[TensorSpec]:
        return sent_specs(self.inputs, self.optional_inputs, feeds)


_sessions: WeakSet[Session] = WeakSet()
"""Sessions that are open on the CPU."""

_adding = threading.Lock()


def give_back_arenas() -> None:
    """Make every open session release the memory of earlier runs. Any thread may call it.

    A run releases its memory while its outputs still exist. So the memory of the outputs stays
    allocated until the next run, although the outputs are no longer in use.
    """
    with _adding:
        sessions = list(_sessions)
    for session in sessions:
        session.give_back({spec.name: _smallest(spec) for spec in session.inputs})


def _smallest(spec: TensorSpec) -> Array:
    """Return the smallest input that the shape allows."""
    shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
    is_object = spec.dtype.hasobject
    return np.full(shape, "", np.object_) if is_object else np.zeros(shape, spec.dtype)


LEFT_OUT: Array = np.empty((), np.object_)
"""A placeholder for a sequence, a map or an optional, which is not fetched."""


def _choose_by_texts(bound: Bound, few: _Run, many: _Run) -> _Run:
    """Return a run that uses `few` if the inputs limit the number of texts, and else `many`."""

    def chosen(names: Sequence[str], feeds: Mapping[str, Any], options: Any) -> list[Array]:
        run = few if bound(feeds) <= TEXTS_AT_ONCE else many
        return run(names, feeds, options)

    return chosen


def _refuse_empty(run: _Run) -> _Run:
    """Return `run` with a check that raises InvalidInput for inputs without elements."""

    def checked(names: Sequence[str], feeds: Mapping[str, Any], options: Any) -> list[Array]:
        for name, array in feeds.items():
            if not array.size:
                raise InvalidInput(
                    f"input {quoted(name)} is empty: ONNX Runtime would end the server, as the "
                    "model has an LSTM or a GRU; send at least one row"
                )
        return run(names, feeds, options)

    return checked


def _leave_out(run: _Run, outputs: Sequence[TensorSpec]) -> _Run:
    """Return `run` without the outputs that are not tensors.

    A classifier's ZipMap would create a dict for each row, which no request protocol supports.
    """
    transportable = [spec.transportable for spec in outputs]
    if not any(transportable):
        return lambda names, feeds, options: [LEFT_OUT] * len(transportable)

    def run_some(names: Sequence[str], feeds: Mapping[str, Array], options: Any) -> list[Array]:
        found = iter(run(names, feeds, options))
        return [next(found) if one else LEFT_OUT for one in transportable]

    return run_some


def _check_columns(run: _Run, outputs: Sequence[TensorSpec]) -> _Run:
    """Return `run` with a check for one column per class, as in the model's ZipMap.

    The check raises InferenceFailed.
    """
    wanted = [(place, spec) for place, spec in enumerate(outputs) if spec.classes]

    def run_checked(names: Sequence[str], feeds: Mapping[str, Array], options: Any) -> list[Array]:
        found = run(names, feeds, options)
        for place, spec in wanted:
            shape = found[place].shape
            if len(shape) != 2 or shape[1] != len(spec.classes):
                raise InferenceFailed(
                    f"output {quoted(spec.name)} has shape {list(shape)}, where the model names "
                    f"{len(spec.classes)} classes of its columns",
                    blames_input=False,
                )
        return found

    return run_checked


def _closed(*_: object) -> list[Array]:
    raise InferenceFailed("the model is closed", blames_input=False)


def _needs_ortvalue(spec: TensorSpec) -> bool:
    return spec.transportable and not BY_NAME[spec.datatype].numpy_native


def _to_ortvalue(array: Array, spec: TensorSpec) -> Any:
    """Return an OrtValue over `array`, which must outlive it, or over its own packed copy."""
    if is_text(spec):
        return hold_texts(array)
    if not _needs_ortvalue(spec):
        return _OrtValue.ortvalue_from_numpy(array, _cpu())
    datatype = BY_NAME[spec.datatype]
    if array.dtype != datatype.dtype:
        raise InvalidInput(f"input {spec.name!r} is {spec.datatype}, got {array.dtype}")
    if not datatype.packed:
        raw = array.view(np.uint16 if datatype.bits == 16 else np.uint8)
        return _OrtValue.ortvalue_from_numpy_with_onnx_type(raw, datatype.onnx)
    value = _OrtValue.ortvalue_from_shape_and_onnx_type(array.shape, datatype.onnx, _cpu())
    if array.size:
        packed = pack(array, datatype.bits)
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
    return value


def _from_ortvalue(value: Any, spec: TensorSpec, fed: Container[int]) -> Array:
    if not _needs_ortvalue(spec):
        plain: Array = value.numpy()
        # The array keeps the value alive, but not the memory of an input that is also an output.
        return plain.copy() if plain.dtype.kind != "O" and value.data_ptr() in fed else plain
    datatype: Datatype = BY_NAME[spec.datatype]
    shape = tuple(value.shape())
    size = datatype.size(prod(shape))
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", np.uint8)
    if datatype.packed:
        return unpack(raw, datatype, shape)
    return raw.view(datatype.dtype).reshape(shape)


def _cpu() -> Any:
    state = ort.capi.onnxruntime_pybind11_state
    return state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
