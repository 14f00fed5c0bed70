"""An open model and its runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from app.errors import InferenceFailed, InvalidInput
from app.session.failures import run_failure
from app.session.protobuf import Metadata
from app.session.runtime import ort
from app.tensors import BY_NAME, Array, TensorSpec, check_names

_OrtValue: Any = ort.capi.onnxruntime_pybind11_state.OrtValue
_Run = Callable[[Sequence[str], Mapping[str, Array], Any], list[Array]]


@dataclass(frozen=True, slots=True)
class Fallback:
    """A provider that was wanted and is not the active one, and why."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Which providers were wanted and what came of it, in short names.

    `nodes` counts the model's nodes by provider, as they were placed before fusion; it is empty
    where the runtime does not say or where every node was computed at load.
    """

    wanted: tuple[str, ...]
    active: str
    fallbacks: tuple[Fallback, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def fell_back(self) -> bool:
        """Whether another link than the first wanted serves, be it the same provider elsewhere."""
        return self.active != self.wanted[0] or bool(self.fallbacks)

    @property
    def reason(self) -> str:
        """Why the active provider is not the first wanted, or ""."""
        if not self.fell_back:
            return ""
        return "; ".join(f"{fallback.provider}: {fallback.reason}" for fallback in self.fallbacks)


# Shared by the runs nobody stops: with None, ONNX Runtime makes one for each (0.4 µs).
_PLAIN: Any = ort.RunOptions()


class Control:
    """A hand on one run, or on several that shall stop together."""

    __slots__ = ("options",)

    def __init__(self) -> None:
        self.options: Any = ort.RunOptions()

    def stop(self) -> None:
        """End the run before its next node, or before it starts; from any thread."""
        self.options.terminate = True


class Session:
    """An open ONNX model. Any number of threads may `run` it at once."""

    __slots__ = ("_names", "_raw", "_run", "device", "inputs", "metadata", "outputs", "placement")

    def __init__(
        self,
        raw: Any,
        *,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        metadata: Metadata,
        placement: Placement,
        device: str,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.metadata, self.placement, self.device = metadata, placement, device
        self._names = [spec.name for spec in outputs]
        self._raw = raw
        # The C++ object under `raw`: raw's own `run` costs 1 µs more, prints, and falls back.
        self._run: _Run = raw._sess.run
        if any(_boxed(spec) for spec in (*inputs, *outputs)):
            self._run = self._run_boxed

    def run(self, feeds: Mapping[str, Array], control: Control | None = None) -> list[Array]:
        """Every output, in the order of `outputs`.

        Raises InvalidInput or InferenceFailed, the latter also when `control` stopped the run. The
        arrays may be non-contiguous; their datatypes must be the inputs' in native byte order.
        """
        if len(feeds) != len(self.inputs):
            check_names(self.inputs, feeds)
        try:
            for array in feeds.values():
                if not array.dtype.isnative:  # would be read as other numbers
                    raise InvalidInput("an input is not in this machine's byte order")
            return self._run(self._names, feeds, _PLAIN if control is None else control.options)
        except Exception as error:
            raise run_failure(error) from error

    def control(self) -> Control:
        """A new Control for a run."""
        return Control()

    def close(self) -> None:
        """Let go of the model. Runs in flight finish; later ones raise InferenceFailed."""
        self._run = _closed
        self._raw = None

    def _run_boxed(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: Any
    ) -> list[Array]:
        """The way for datatypes that numpy lacks: each array in an OrtValue."""
        values = {
            spec.name: _box(np.ascontiguousarray(feeds[spec.name]), spec) for spec in self.inputs
        }
        boxes = self._raw._sess.run_with_ort_values(values, names, options)
        return [_unbox(box, spec) for box, spec in zip(boxes, self.outputs, strict=True)]


def _closed(*_: object) -> list[Array]:
    raise InferenceFailed("the model is closed", blames_input=False)


# onnx.TensorProto.BFLOAT16
_BFLOAT16 = 16


def _boxed(spec: TensorSpec) -> bool:
    return spec.carried and not BY_NAME[spec.datatype].bare


def _box(array: Array, spec: TensorSpec) -> Any:
    if not _boxed(spec):
        return _OrtValue.ortvalue_from_numpy(array, _cpu())
    if array.dtype != ml_dtypes.bfloat16:
        raise InvalidInput(f"input {spec.name!r} is {spec.datatype}, got {array.dtype}")
    return _OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)


def _unbox(box: Any, spec: TensorSpec) -> Array:
    if not _boxed(spec):
        plain: Array = box.numpy()
        return plain
    shape = tuple(box.shape())
    size = int(np.prod(shape, dtype=np.int64)) * 2
    raw = ctypes.string_at(box.data_ptr(), size) if size else b""
    return np.frombuffer(raw, spec.dtype).reshape(shape)


def _cpu() -> Any:
    state = ort.capi.onnxruntime_pybind11_state
    return state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
