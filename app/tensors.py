"""Tensors as a model describes them: names, datatypes and shapes, and what fits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput, did_you_mean, quoted

Array = NDArray[np.generic]
Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row of the table of datatypes: its Open Inference name, ONNX Runtime's and numpy's."""

    name: str
    ort: str
    dtype: np.dtype[np.generic]
    bare: bool = True  # crosses `session.run` as a numpy array; the others need an OrtValue


def _row(name: str, ort: str, dtype: object, *, bare: bool = True) -> Datatype:
    return Datatype(name, f"tensor({ort})", np.dtype(dtype), bare)  # type: ignore[call-overload]


# https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol#tensor-data-types
DATATYPES: tuple[Datatype, ...] = (
    _row("BOOL", "bool", np.bool_),
    _row("INT8", "int8", np.int8),
    _row("INT16", "int16", np.int16),
    _row("INT32", "int32", np.int32),
    _row("INT64", "int64", np.int64),
    _row("UINT8", "uint8", np.uint8),
    _row("UINT16", "uint16", np.uint16),
    _row("UINT32", "uint32", np.uint32),
    _row("UINT64", "uint64", np.uint64),
    _row("FP16", "float16", np.float16),
    _row("BF16", "bfloat16", ml_dtypes.bfloat16, bare=False),
    _row("FP32", "float", np.float32),
    _row("FP64", "double", np.float64),
    _row("BYTES", "string", np.object_),
)
BY_NAME: Mapping[str, Datatype] = {datatype.name: datatype for datatype in DATATYPES}
BY_ORT: Mapping[str, Datatype] = {datatype.ort: datatype for datatype in DATATYPES}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    `shape` holds a length, a symbol's name, or None for a dimension without either; the whole is
    None where the rank is unknown. `datatype` is the Open Inference name, or ONNX Runtime's own
    words (`seq(tensor(float))`) for what is no tensor Cohort carries.
    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def carried(self) -> bool:
        """Whether values of this kind can be sent over the wire."""
        return self.datatype in BY_NAME

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """numpy's dtype; an InvalidInput where the value is no tensor that can be carried."""
        if self.datatype not in BY_NAME:
            raise InvalidInput(
                f"{quoted(self.name)} is {self.datatype}, which cannot be sent over the wire"
            )
        return BY_NAME[self.datatype].dtype

    @cached_property
    def rows_vary(self) -> bool:
        """Whether axis 0 is there and of no fixed length, as batching needs it."""
        return bool(self.shape) and not isinstance(self.shape[0], int)  # type: ignore[index]

    def check(self, array: Array) -> None:
        """Raise InvalidInput unless `array` has this datatype and a shape that fits."""
        if array.dtype != self.dtype:
            raise InvalidInput(f"input {quoted(self.name)} is {self.datatype}, got {array.dtype}")
        if self.shape is None:
            return
        shape = array.shape
        if len(shape) != len(self.shape):
            raise InvalidInput(
                f"input {quoted(self.name)} takes shape {self.shape_text}, got {list(shape)}"
            )
        for wanted, got in zip(self.shape, shape, strict=True):
            if wanted.__class__ is int and wanted != got:
                raise InvalidInput(
                    f"input {quoted(self.name)} takes shape {self.shape_text}, got {list(shape)}"
                )

    @cached_property
    def shape_text(self) -> str:
        """The shape as people write it: `[N, 3, ?]`."""
        if self.shape is None:
            return "[…]"
        return f"[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def check_inputs(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Raise InvalidInput unless `arrays` are exactly the inputs of `specs`, each of them fitting.

    Dimensions that share a symbol must share a length, too.
    """
    if len(arrays) != len(specs):
        check_names(specs, arrays)
    lengths: dict[str, tuple[int, str]] = {}
    for spec in specs:
        array = arrays.get(spec.name)
        if array is None:
            check_names(specs, arrays)
            raise InvalidInput(f"input {quoted(spec.name)} is missing")
        spec.check(array)
        if len(specs) > 1 and spec.shape is not None:
            _check_symbols(spec, array, lengths)


def check_names(specs: Sequence[TensorSpec], names: Mapping[str, object]) -> None:
    """Raise InvalidInput where `names` holds a name that is no input, or lacks one."""
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            raise InvalidInput(f"there is no input {quoted(name)}{did_you_mean(name, known)}")
    for name in known:
        if name not in names:
            raise InvalidInput(f"input {quoted(name)} is missing")


def _check_symbols(spec: TensorSpec, array: Array, lengths: dict[str, tuple[int, str]]) -> None:
    for symbol, length in zip(spec.shape or (), array.shape, strict=True):
        if not isinstance(symbol, str):
            continue
        seen, by = lengths.setdefault(symbol, (length, spec.name))
        if seen != length:
            raise InvalidInput(
                f"inputs {quoted(by)} and {quoted(spec.name)} share the dimension {symbol}, "
                f"but one has {seen} and the other {length}"
            )
