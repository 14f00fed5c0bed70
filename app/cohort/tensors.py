"""A model's tensors: names, datatypes and shapes, and checks of arrays against them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from sys import getsizeof
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cohort.errors import InvalidInput, did_you_mean, quoted

Array = NDArray[np.generic]
Arrays = dict[str, Array]


Kind = Literal["bool", "int", "float", "text"]


@dataclass(frozen=True, slots=True)
class Datatype:
    """A row of the table of datatypes.

    name: The Open Inference name, such as "FP32".
    ort: ONNX Runtime's name, such as "tensor(float)".
    dtype: numpy's type. Arrays hold one element per item, even if it has fewer than 8 bits. BYTES
        are str in object arrays. Inputs other than text may use numpy's void, bytes of one length.
    kind: The kind of its elements, which numpy does not report for the types of ml_dtypes.
    onnx: The number in ONNX's TensorProto.DataType.
    bits: The bits of an element outside of arrays.
    numpy_native: True if `session.run` accepts it as a numpy array; others need an OrtValue.
    """

    name: str
    ort: str
    dtype: np.dtype[np.generic]
    kind: Kind
    onnx: int
    bits: int
    numpy_native: bool

    @property
    def packed(self) -> bool:
        """True if several elements share a byte in files and requests."""
        return 0 < self.bits < 8

    def size(self, elements: int) -> int:
        """Return the bytes of a number of elements as files and requests store them."""
        return -(-elements * self.bits // 8)


def _row(
    name: str, ort: str, dtype: object, kind: Kind, onnx: int, bits: int | None = None
) -> Datatype:
    known: np.dtype[np.generic] = np.dtype(dtype)  # type: ignore[call-overload]
    bits = known.itemsize * 8 if bits is None else bits
    numpy_native = known.isbuiltin == 1
    return Datatype(name, f"tensor({ort})", known, kind, onnx, bits, numpy_native)


# https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol#tensor-data-types
STANDARD: tuple[Datatype, ...] = (
    _row("BOOL", "bool", np.bool_, "bool", 9),
    _row("INT8", "int8", np.int8, "int", 3),
    _row("INT16", "int16", np.int16, "int", 5),
    _row("INT32", "int32", np.int32, "int", 6),
    _row("INT64", "int64", np.int64, "int", 7),
    _row("UINT8", "uint8", np.uint8, "int", 2),
    _row("UINT16", "uint16", np.uint16, "int", 4),
    _row("UINT32", "uint32", np.uint32, "int", 12),
    _row("UINT64", "uint64", np.uint64, "int", 13),
    _row("FP16", "float16", np.float16, "float", 10),
    _row("BF16", "bfloat16", ml_dtypes.bfloat16, "float", 16),
    _row("FP32", "float", np.float32, "float", 1),
    _row("FP64", "double", np.float64, "float", 11),
    _row("BYTES", "string", np.object_, "text", 8, bits=0),  # variable length
)
# Cohort's names, in the style of the standard ones: docs/contributing/decisions/0005
EXTENSION: tuple[Datatype, ...] = (
    _row("FP8E4M3FN", "float8e4m3fn", ml_dtypes.float8_e4m3fn, "float", 17),
    _row("FP8E4M3FNUZ", "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, "float", 18),
    _row("FP8E5M2", "float8e5m2", ml_dtypes.float8_e5m2, "float", 19),
    _row("FP8E5M2FNUZ", "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, "float", 20),
    _row("FP8E8M0", "float8e8m0", ml_dtypes.float8_e8m0fnu, "float", 24),
    _row("FP4E2M1", "float4e2m1", ml_dtypes.float4_e2m1fn, "float", 23, bits=4),
    _row("INT4", "int4", ml_dtypes.int4, "int", 22, bits=4),
    _row("UINT4", "uint4", ml_dtypes.uint4, "int", 21, bits=4),
    _row("INT2", "int2", ml_dtypes.int2, "int", 26, bits=2),
    _row("UINT2", "uint2", ml_dtypes.uint2, "int", 25, bits=2),
)
DATATYPES: tuple[Datatype, ...] = (*STANDARD, *EXTENSION)
BY_NAME: Mapping[str, Datatype] = {datatype.name: datatype for datatype in DATATYPES}
BY_DTYPE: Mapping[np.dtype[np.generic], Datatype] = {row.dtype: row for row in DATATYPES}
BY_ORT: Mapping[str, Datatype] = {datatype.ort: datatype for datatype in DATATYPES}


SAMPLED_TEXTS = 256
"""Limit of BYTES elements whose sizes are read (0.1 ms); of more, a random sample."""

_random = np.random.default_rng()


def held_bytes(array: Array) -> int:
    """Return an array's memory in bytes; an estimate for more than SAMPLED_TEXTS texts."""
    size = array.size
    if not array.dtype.hasobject or not size:
        return array.nbytes
    texts = array.reshape(-1)
    if size > SAMPLED_TEXTS:
        texts = texts[_random.integers(0, size, SAMPLED_TEXTS)]
    return array.nbytes + sum(map(getsizeof, texts.tolist())) * size // texts.size


def content_of(array: Array) -> bytes:
    """Return an array's content, to compare it with arrays of the same datatype and shape."""
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def pack(array: Array, bits: int) -> NDArray[np.uint8]:
    """Pack elements of `bits` each as ONNX does: the first in a byte's lowest bits.

    https://github.com/onnx/onnx/blob/main/docs/docsgen/source/technical/int4.md
    """
    each = 8 // bits
    flat = np.asarray(array, order="C").reshape(-1).view(np.uint8)
    bytes_ = np.zeros(-(-flat.size // each), np.uint8)
    for place in range(each):
        part = flat[place::each] & ((1 << bits) - 1)
        bytes_[: part.size] |= part << (place * bits)
    return bytes_


def unpack(buffer: NDArray[np.uint8], datatype: Datatype, shape: Sequence[int]) -> Array:
    """Unpack elements that `pack` packed."""
    bits, each = datatype.bits, 8 // datatype.bits
    flat = np.empty(buffer.size * each, np.uint8)
    for place in range(each):
        flat[place::each] = (buffer >> (place * bits)) & ((1 << bits) - 1)
    return flat[: prod(shape)].view(datatype.dtype).reshape(shape)


ANY = "ANY"
"""The datatype of an input that accepts any datatype."""


UNKNOWN_LENGTH = (
    ": its number of tensors is known only after a run; export each as a separate output, or join "
    "them with SequenceConstruct"
)
"""Advice for a model whose output is a sequence."""


@dataclass(frozen=True, slots=True)
class DetectionSpec:
    """Options that turn an output of boxes, and other outputs, into objects.

    scores: The output of scores, or a column of the boxes.
    classes: The output of classes, or a column of the boxes; None: use the best score.
    form: The four numbers of a box: xyxy, xywh, cxcywh or yxyx.
    unit: The unit in responses: "pixels", or "picture" for fractions of its width and height.
    size: Height and width in pixels, to divide boxes by; None: keep pixels.
    labels: The names of the classes; empty: use numbers.
    threshold: Minimum score of an object; None: any.
    top: Maximum objects of a picture; None: any number.
    """

    scores: str | int
    classes: str | int | None
    form: str
    unit: str
    size: tuple[int, int] | None
    labels: tuple[str, ...]
    threshold: float | None
    top: int | None


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    name: The name of the input or output.
    datatype: The Open Inference name, or ONNX Runtime's name, such as `seq(tensor(float))`, for a
        type that cannot be sent.
    shape: A length, a symbol's name, or None for each dimension; None if the rank is unknown.
    classes: The classes of the columns, from a classifier's file; default: unknown.
    missing: The value for a missing value of an input, such as null; default None: NaN for floats.
        By default, other inputs reject such requests.
    files: The elements of a BYTES input are files: bytes in object arrays, or base64 text; default
        False: text.
    named: Number of best classes of each row that responses name in addition to the output. With 0
        they name the best one, not in a list; default None: no names.
    threshold: Minimum score of a named class, so that each row has a list; default None: any.
    columns: The column names of an input [N, columns], from its file; default: unknown.
    part_of: The name of the sequence to which an output tensor belongs; default: no sequence.
    detections: The objects in an output of boxes; default None.
    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...] | None
    classes: tuple[int, ...] | tuple[str, ...] = ()
    missing: float | int | str | None = None
    files: bool = False
    named: int | None = None
    threshold: float | None = None
    columns: tuple[str, ...] = ()
    part_of: str = ""
    detections: DetectionSpec | None = None

    @property
    def transportable(self) -> bool:
        """True if values of this datatype can be sent over the wire."""
        return self.datatype in BY_NAME

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """numpy's dtype. Raises InvalidInput if it is not `transportable`."""
        if self.datatype not in BY_NAME:
            raise InvalidInput(
                f"{quoted(self.name)} is {self.datatype}, which cannot be sent over the wire"
                f"{UNKNOWN_LENGTH if self.datatype.startswith('seq(tensor(') else ''}"
            )
        return BY_NAME[self.datatype].dtype

    @cached_property
    def rows_vary(self) -> bool:
        """True if axis 0 exists and has no fixed length, as batching requires."""
        return bool(self.shape) and not isinstance(self.shape[0], int)  # type: ignore[index]

    def fit(self, array: Array) -> Array:
        """Return `array`; reshape one dimension to `[N, 1]` if the input has that shape."""
        shape = self.shape
        if array.ndim == 1 and shape is not None and len(shape) == 2 and shape[1] == 1:
            return array.reshape(-1, 1)
        return array

    @cached_property
    def labels(self) -> Sequence[str]:
        """The classes of the columns as text; empty if unknown."""
        return tuple(map(str, self.classes))

    def check(self, array: Array) -> None:
        """Raise InvalidInput unless `array` has this datatype and a shape that fits."""
        if self.datatype == ANY:
            return
        dtype, wanted, lengths = self._wanted
        if (
            array.dtype is not dtype
            and array.dtype != dtype
            and not (self.datatype == "BYTES" and array.dtype.type is np.void)
        ):
            raise InvalidInput(f"input {quoted(self.name)} is {self.datatype}, got {array.dtype}")
        if wanted is None:
            return
        shape = array.shape
        if len(shape) == wanted:
            for axis, length in lengths:
                if shape[axis] != length:
                    break
            else:
                return
        raise InvalidInput(
            f"input {quoted(self.name)} must have shape {self.shape_text}, got {list(shape)}"
            f"{_nested(array, self)}"
        )

    @cached_property
    def _wanted(self) -> tuple[np.dtype[np.generic], int | None, tuple[tuple[int, int], ...]]:
        """The dtype, the rank, and the axes of fixed length, to check every request."""
        if self.shape is None:
            return self.dtype, None, ()
        fixed = [(axis, size) for axis, size in enumerate(self.shape) if isinstance(size, int)]
        return self.dtype, len(self.shape), tuple(fixed)

    @cached_property
    def shape_text(self) -> str:
        """The shape as text for messages: `[N, 3, ?]`."""
        if self.shape is None:
            return "[…]"
        return f"[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


MAX_SHOWN = 8
"""Limit of a row's elements for a message that shows how to send it."""


def _nested(array: Array, spec: TensorSpec) -> str:
    """Return advice if a row is not in a list of rows, or is in one list too many."""
    shape = spec.shape or ()
    rank = len(shape)
    if array.ndim == rank - 1:
        few = array.ndim == 1 and array.dtype.kind in "fiu" and array.size <= MAX_SHOWN
        row = f"[{', '.join(f'{number:g}' for number in array)}]" if few else "…"
        return f"; is it one row? Wrap it in a list: [{row}]"
    if array.ndim == rank + 1 and len(array) == 1:
        return "; it is in one list too many"
    return ""


def by_name(specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> Arrays:
    """Return the arrays of `specs` by name, without those that cannot be sent."""
    return {
        spec.name: array for spec, array in zip(specs, arrays, strict=True) if spec.transportable
    }


def only_vectors(specs: Sequence[TensorSpec]) -> int | None:
    """Return the position of the only output [N, H] of floats; None if there is not just one."""
    found = [
        place
        for place, spec in enumerate(specs)
        if spec.transportable
        and spec.datatype in {"FP16", "BF16", "FP32", "FP64"}
        and spec.shape is not None
        and len(spec.shape) == 2
    ]
    return found[0] if len(found) == 1 else None


class OpenSpecs(list[TensorSpec]):
    """Optional inputs that allow additional inputs, of any datatype and shape."""


def sent_specs(
    required: Sequence[TensorSpec], optional: Sequence[TensorSpec], names: Collection[str]
) -> Sequence[TensorSpec]:
    """Return the inputs of a request: the required ones, and the `optional` ones in `names`."""
    sent = [spec for spec in optional if spec.name in names]
    if optional.__class__ is OpenSpecs:
        known = {spec.name for spec in (*required, *sent)}
        sent += [TensorSpec(name, ANY, None) for name in names if name not in known]
    return [*required, *sent] if sent else required


def check_inputs(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> None:
    """Raise InvalidInput unless `arrays` are exactly the inputs of `specs`, and each fits.

    Dimensions that share a symbol must have the same length.
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


TYPED_ARRAY = " (a Float32Array? send Array.from(it))"
"""Advice for `{"0": 1.5, …}`, as JSON.stringify writes JavaScript's typed arrays."""


def check_names(specs: Sequence[TensorSpec], names: Mapping[str, object]) -> None:
    """Raise InvalidInput if `names` has an unknown input, or lacks one."""
    known = dict.fromkeys([spec.name for spec in specs])
    for name in names:
        if name not in known:
            hint = TYPED_ARRAY if name == "0" else ""
            raise InvalidInput(f"input {quoted(name)} not found{did_you_mean(name, known)}{hint}")
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
