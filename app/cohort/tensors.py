"""Tensors as a model describes them: names, datatypes and shapes, and what fits them."""

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
    """One row of the table of datatypes.

    name: The Open Inference name, such as "FP32".
    ort: ONNX Runtime's name, such as "tensor(float)".
    dtype: numpy's type. Arrays hold one element per item, also where it has fewer than 8 bits.
        BYTES are str in object arrays, or else, as inputs that are not text, numpy's void: bytes
        that are all of one length.
    kind: What its elements are, which numpy does not tell for the types of ml_dtypes.
    onnx: The number in ONNX's TensorProto.DataType.
    bits: The bits of an element outside of arrays.
    numpy_native: Whether `session.run` takes it as a numpy array; others need an OrtValue.
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
        """Whether several elements share a byte outside of arrays."""
        return 0 < self.bits < 8

    def size(self, elements: int) -> int:
        """How many bytes so many elements take outside of arrays."""
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
    _row("BYTES", "string", np.object_, "text", 8, bits=0),  # each as long as it is
)
# Names of ours, made as theirs are: docs/contributing/decisions/0005
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
"""Elements of BYTES whose sizes are looked at: 0.1 ms; of more, so many at random."""

_random = np.random.default_rng()


def held_bytes(array: Array) -> int:
    """The bytes of memory that an array holds; of more than SAMPLED_TEXTS texts an estimate."""
    size = array.size
    if not array.dtype.hasobject or not size:
        return array.nbytes
    texts = array.reshape(-1)
    if size > SAMPLED_TEXTS:
        texts = texts[_random.integers(0, size, SAMPLED_TEXTS)]
    return array.nbytes + sum(map(getsizeof, texts.tolist())) * size // texts.size


def content_of(array: Array) -> bytes:
    """What is in an array, to be compared with others of its datatype and shape."""
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
    """Unpack what `pack` packed."""
    bits, each = datatype.bits, 8 // datatype.bits
    flat = np.empty(buffer.size * each, np.uint8)
    for place in range(each):
        flat[place::each] = (buffer >> (place * bits)) & ((1 << bits) - 1)
    return flat[: prod(shape)].view(datatype.dtype).reshape(shape)


ANY = "ANY"
"""The datatype of an input that may have any."""


UNKNOWN_LENGTH = (
    ": how many tensors it has is known after a run only; export each as an output of its own, or "
    "put them together by SequenceConstruct"
)
"""What to do about a sequence as an output."""


@dataclass(frozen=True, slots=True)
class DetectionSpec:
    """What makes objects in pictures of an output of boxes, and of others beside it.

    scores: The output of scores, or a column of the boxes: one for each box, or for each class.
    classes: The output of classes, or a column of the boxes; None: the class of the best score.
    form: The four numbers of a box: xyxy, xywh, cxcywh or yxyx.
    unit: What they are in answers: "pixels", or "picture": parts of its width and height.
    size: Height and width in pixels that numbers are divided by; None: they stay.
    labels: The names of the classes; empty: they have none.
    threshold: The least score of an object; None: any.
    top: The most objects of a picture; None: any number.
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

    `shape` holds a length, a symbol's name, or None for a dimension without either; the whole is
    None where the rank is unknown. `datatype` is the Open Inference name, or ONNX Runtime's own
    words (`seq(tensor(float))`) for what is not a tensor that can be sent. `classes` are those of
    the columns, where a classifier's file names them; default: it does not.

    `missing` stands for a missing value of an input, such as null; default None: NaN for floats,
    and such a request is refused for others. `files`: whether the elements of an input of BYTES are
    files, which are bytes in object arrays, or base64 as text; default: they are text. `named`: How
    many of the best classes of each row answers name beside an output; 0: the best one, not in a
    list; default None: none. `threshold`: the least score of a class that is named, so that each
    row has a list; default None: any. `columns` are the names of the columns of an input
    [N, columns], where its file says; default: it does not. `part_of` is the name of the sequence
    that an output is a tensor of; default: of none. `detections` makes objects of an output of
    boxes; default: nothing does.
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
        """Whether values of this kind can be sent over the wire."""
        return self.datatype in BY_NAME

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """numpy's dtype; an InvalidInput where the value is not `transportable`."""
        if self.datatype not in BY_NAME:
            raise InvalidInput(
                f"{quoted(self.name)} is {self.datatype}, which cannot be sent over the wire"
                f"{UNKNOWN_LENGTH if self.datatype.startswith('seq(tensor(') else ''}"
            )
        return BY_NAME[self.datatype].dtype

    @cached_property
    def rows_vary(self) -> bool:
        """Whether axis 0 is there and of no fixed length, as batching needs it."""
        return bool(self.shape) and not isinstance(self.shape[0], int)  # type: ignore[index]

    def fit(self, array: Array) -> Array:
        """`array`, whose elements are a row each where the input is one column: `[N, 1]`."""
        shape = self.shape
        if array.ndim == 1 and shape is not None and len(shape) == 2 and shape[1] == 1:
            return array.reshape(-1, 1)
        return array

    @cached_property
    def labels(self) -> Sequence[str]:
        """The classes of the columns as text; empty where they are not known."""
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
            f"input {quoted(self.name)} takes shape {self.shape_text}, got {list(shape)}"
            f"{_nested(array, self)}"
        )

    @cached_property
    def _wanted(self) -> tuple[np.dtype[np.generic], int | None, tuple[tuple[int, int], ...]]:
        """The dtype, the rank, and the axes of fixed length: what every request is held against."""
        if self.shape is None:
            return self.dtype, None, ()
        fixed = [(axis, size) for axis, size in enumerate(self.shape) if isinstance(size, int)]
        return self.dtype, len(self.shape), tuple(fixed)

    @cached_property
    def shape_text(self) -> str:
        """The shape as people write it: `[N, 3, ?]`."""
        if self.shape is None:
            return "[…]"
        return f"[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


MOST_SHOWN = 8
"""Elements of a row that are written as it should be sent."""


def _nested(array: Array, spec: TensorSpec) -> str:
    """What to do where a row came without the list of rows, or in one list too many."""
    shape = spec.shape or ()
    rank = len(shape)
    if array.ndim == rank - 1:
        few = array.ndim == 1 and array.dtype.kind in "fiu" and array.size <= MOST_SHOWN
        row = f"[{', '.join(f'{number:g}' for number in array)}]" if few else "…"
        return f"; is it one row? Wrap it in a list: [{row}]"
    if array.ndim == rank + 1 and len(array) == 1:
        return "; it is in one list too many"
    return ""


def by_name(specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> Arrays:
    """The arrays of `specs`, without those that are not tensors, by name."""
    return {
        spec.name: array for spec, array in zip(specs, arrays, strict=True) if spec.transportable
    }


class OpenSpecs(list[TensorSpec]):
    """Optional inputs beside which a request may have others, of any datatype and shape."""


def sent_specs(
    required: Sequence[TensorSpec], optional: Sequence[TensorSpec], names: Collection[str]
) -> Sequence[TensorSpec]:
    """The inputs of a request: those that it must have, and the `optional` ones among `names`."""
    sent = [spec for spec in optional if spec.name in names]
    if optional.__class__ is OpenSpecs:
        known = {spec.name for spec in (*required, *sent)}
        sent += [TensorSpec(name, ANY, None) for name in names if name not in known]
    return [*required, *sent] if sent else required


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


TYPED_ARRAY = " (a Float32Array? send Array.from(it))"
"""What to do about `{"0": 1.5, …}`, as JSON.stringify writes JavaScript's typed arrays."""


def check_names(specs: Sequence[TensorSpec], names: Mapping[str, object]) -> None:
    """Raise InvalidInput where `names` has a name that is not an input, or lacks one."""
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
