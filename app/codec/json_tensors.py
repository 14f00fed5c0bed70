"""Arrays to and from the values JSON has: numbers, booleans and strings in nested lists.

`from_lists` decides: it checks every value and says what is wrong and where. The fast paths,
`pack_short` for short lists and `app.codec.simdjson_reader` for long text, give the same array or
None, and None means: use `from_lists`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from struct import Struct
from struct import error as PackError  # noqa: N812 - it is an exception, whatever its name says
from typing import Any

import ml_dtypes
import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import InferenceFailed, InvalidInput, quoted
from app.tensors import BY_NAME, DATATYPES, Array, TensorSpec

Shape = tuple[int, ...]

MAX_RANK = 64  # numpy's own


INTEGERS: Mapping[str, tuple[int, int]] = {
    row.name: (int(known.min), int(known.max))
    for row in DATATYPES
    if row.kind == "int"
    for known in [ml_dtypes.iinfo(row.dtype)]  # type: ignore[no-untyped-call]
}
FLOATS = frozenset(row.name for row in DATATYPES if row.kind == "float")
_WANTED: Mapping[str, frozenset[type]] = {
    "BOOL": frozenset({bool}),
    "BYTES": frozenset({str}),
    **dict.fromkeys(FLOATS, frozenset({int, float})),
    **dict.fromkeys(INTEGERS, frozenset({int})),
}
_LARGEST: Mapping[np.dtype[np.generic], float] = {
    BY_NAME[name].dtype: float(ml_dtypes.finfo(BY_NAME[name].dtype).max)  # type: ignore[no-untyped-call]
    for name in FLOATS
}
_SHORT = 1024  # elements; BLAS does not wake its threads for as few


# --- Lists to arrays


def from_lists(spec: TensorSpec, value: object) -> Array:
    """Make the array that `spec` describes of nested lists, or of a single value.

    The rank is the value's own. An empty list says nothing of the dimensions below it: they are the
    spec's, and 0 where the spec leaves them open.
    """
    shape, leaves = _take_apart(spec.name, value)
    if not leaves and spec.shape is not None and len(shape) < len(spec.shape):
        rest = spec.shape[len(shape) :]
        shape = (*shape, *(size if isinstance(size, int) else 0 for size in rest))
    return _array(spec.name, spec.datatype, leaves, shape)


def decode_tensor(name: str, datatype: str, shape: Sequence[int], data: object) -> Array:
    """Make an array of an Open Inference JSON tensor: `data` is flat, or nested as `shape` says.

    Raises InvalidInput.
    """
    wanted = checked_shape(name, datatype, shape)
    array = pack_short(datatype, data, booleans=True)
    if array is not None and (array.shape == wanted or array.shape == (prod(wanted),)):
        return array.reshape(wanted)
    found, leaves = _take_apart(name, data)
    if not isinstance(data, list):
        raise InvalidInput(f"the data of input {quoted(name)} must be a list, got {shown(data)}")
    if len(leaves) != prod(wanted):
        raise wrong_count(name, wanted, len(leaves))
    if leaves and len(found) > 1 and found != wanted:
        raise InvalidInput(
            f"input {quoted(name)} has shape {list(wanted)}, but its data has {list(found)}"
        )
    return _array(name, datatype, leaves, wanted)


def checked_shape(name: str, datatype: str, shape: Sequence[int]) -> Shape:
    """Raise InvalidInput unless `shape` could be an array's, and `datatype` is one we carry."""
    if datatype not in BY_NAME:
        raise InvalidInput(f"input {quoted(name)} has an unknown datatype {quoted(datatype)}")
    if len(shape) > MAX_RANK:
        raise InvalidInput(
            f"input {quoted(name)} has {len(shape)} dimensions; the maximum is {MAX_RANK}"
        )
    for size in shape:
        if size.__class__ is not int or size < 0:
            raise InvalidInput(
                f"input {quoted(name)} must have a shape of whole numbers >= 0, got {shown(size)}"
            )
    # numpy cannot hold what its strides cannot count, be it empty.
    if prod(size or 1 for size in shape) * BY_NAME[datatype].dtype.itemsize >= 1 << 63:
        raise InvalidInput(f"input {quoted(name)} has a shape of too many elements")
    return tuple(shape)


def _take_apart(name: str, value: object) -> tuple[Shape, list[Any]]:
    """Give the shape and the elements of nested lists. Raises InvalidInput for ragged ones."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and level[0].__class__ is list:
        width = len(level[0])
        for index, node in enumerate(level):
            if node.__class__ is not list:
                raise InvalidInput(
                    f"input {quoted(name)} is ragged: a list at {_place(0, shape)}, "
                    f"{shown(node)} at {_place(index, shape)}"
                )
            if len(node) != width:
                raise InvalidInput(
                    f"input {quoted(name)} is ragged: length {width} at {_place(0, shape)}, "
                    f"length {len(node)} at {_place(index, shape)}"
                )
        level = level[0] if len(level) == 1 else [*chain.from_iterable(level)]
        shape.append(width)
        if len(shape) > MAX_RANK:
            raise InvalidInput(f"input {quoted(name)} is nested deeper than {MAX_RANK} lists")
    if list in set(map(type, level)):
        index = next(index for index, node in enumerate(level) if node.__class__ is list)
        raise InvalidInput(
            f"input {quoted(name)} is ragged: {shown(level[0])} at {_place(0, shape)}, "
            f"a list at {_place(index, shape)}"
        )
    return tuple(shape), level


def _array(name: str, datatype: str, leaves: list[Any], shape: Shape) -> Array:
    wanted = _WANTED[datatype]
    limits = INTEGERS.get(datatype)
    if not wanted.issuperset(map(type, leaves)):
        index = next(index for index, leaf in enumerate(leaves) if type(leaf) not in wanted)
        leaf = leaves[index]
        if limits is not None and leaf.__class__ is float and abs(leaf) >= 1 << 63:
            raise out_of_range(
                name, datatype, leaves[index], index, shape
            )  # orjson's too long integers
        raise InvalidInput(
            f"input {quoted(name)} takes {datatype}, got {shown(leaf)}{_at(index, shape)}"
        )
    dtype = BY_NAME[datatype].dtype
    if datatype in FLOATS:
        exact = np.array(leaves, np.float64)
        array = narrowed(exact, dtype)
        if array is None:
            index = _first_too_large(exact, dtype)
            raise out_of_range(name, datatype, leaves[index], index, shape)
        return array.reshape(shape)
    if limits is not None and leaves:
        low, high = limits
        if min(leaves) < low or max(leaves) > high:
            index = next(i for i, leaf in enumerate(leaves) if not low <= leaf <= high)
            raise out_of_range(name, datatype, leaves[index], index, shape)
    whole = np.int64 if dtype.kind == "V" else dtype
    return np.array(leaves, whole).astype(dtype, copy=False).reshape(shape)


def narrowed(exact: NDArray[np.float64], dtype: np.dtype[np.generic]) -> Array | None:
    """Round finite float64 to a float `dtype`; None where a number is out of its range."""
    if dtype == np.float64:
        return exact
    largest = _LARGEST[dtype]
    if dtype.itemsize == 1:
        # These may lack infinity, NaN, zero or a sign, and some then give their largest instead.
        if exact.size and np.abs(exact).max() > largest:
            return None
    elif exact.size <= _SHORT and np.vdot(exact, exact) < largest * largest:
        # A sum of squares below this holds no number too large: one call of numpy instead of four.
        return exact.astype(dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        array = exact.astype(dtype)
    return array if np.isfinite(array).all() else None


def _first_too_large(exact: NDArray[np.float64], dtype: np.dtype[np.generic]) -> int:
    """The place of the first number out of the range of `dtype`; there is one."""
    first, end = 0, len(exact)
    while end - first > 1:
        middle = (first + end) // 2
        before = narrowed(exact[first:middle], dtype) is None
        first, end = (first, middle) if before else (middle, end)
    return first


def out_of_range(name: str, datatype: str, value: object, index: int, shape: Shape) -> InvalidInput:
    """What to say of the element number `index`."""
    return InvalidInput(
        f"input {quoted(name)} takes {datatype}, got {shown(value)}{_at(index, shape)}, "
        "which is out of range"
    )


def wrong_count(name: str, shape: Shape, count: int) -> InvalidInput:
    """What to say of `count` elements for a shape that takes another number."""
    return InvalidInput(
        f"input {quoted(name)} of shape {list(shape)} takes {prod(shape)} elements, got {count}"
    )


def _at(index: int, shape: Sequence[int]) -> str:
    return f" at {_place(index, shape)}" if shape else ""


def _place(index: int, shape: Sequence[int]) -> str:
    """Write where the element number `index` of a `shape` is: `[0][3]`."""
    steps: list[int] = []
    for size in reversed(shape):
        index, step = divmod(index, size)
        steps.append(step)
    return "".join(f"[{step}]" for step in reversed(steps)) or "the top"


def shown(value: object) -> str:
    """Show a JSON value back to its sender, on one line and bounded."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {quoted(value, 40)}"
        case list():
            return "a list"
        case dict():
            return "an object"
    return quoted(repr(value), 40)[1:-1]


# --- Short lists, quickly


class _Packers(dict[int, Callable[..., bytes]]):
    """`struct`'s packers of `n` numbers of one kind, by `n`.

    They take no strings, no null, no fractions for integers, and nothing out of range, where numpy
    would turn "1" into 1.0 and null into NaN. They do take booleans for numbers.
    """

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, count: int) -> Callable[..., bytes]:
        pack = Struct(f"={count}{self._code}").pack
        if count <= 2048:
            self[count] = pack
        return pack


PACKERS: Mapping[str, tuple[_Packers, np.dtype[np.generic]]] = {
    name: (_Packers(code), BY_NAME[name].dtype)
    for name, code in {
        "INT8": "b",
        "INT16": "h",
        "INT32": "i",
        "INT64": "q",
        "UINT8": "B",
        "UINT16": "H",
        "UINT32": "I",
        "UINT64": "Q",
        "FP32": "f",
        "FP64": "d",
    }.items()
}


def pack_short(datatype: str, value: object, *, booleans: bool) -> Array | None:
    """Make a read-only array of short nested lists; None where `from_lists` must decide.

    `booleans` is false where the text is known to have neither `true` nor `false`.
    """
    known = PACKERS.get(datatype)
    if known is None or value.__class__ is not list:
        return None
    flat: list[Any] = value
    shape = [len(flat)]
    while flat and flat[0].__class__ is list:
        width = len(flat[0])
        shape.append(width)
        if len(flat) == 1:
            flat = flat[0]
            continue
        for row in flat:
            if row.__class__ is not list or len(row) != width:
                return None
        flat = [*chain.from_iterable(flat)]
    if not flat or len(shape) > MAX_RANK or (booleans and bool in map(type, flat)):
        return None
    packers, dtype = known
    try:
        return np.ndarray(shape, dtype, packers[len(flat)](*flat))
    except (PackError, OverflowError, TypeError):
        return None


# --- Arrays to what orjson writes


BY_ITSELF = tuple(np.dtype(name) for name in ("f4", "i8", "f8", "i4", "?", "u1", "i1", "u4", "u8"))
"""What orjson writes without help, the usual first; NaN and infinity it writes as null."""


def encode_tensor(name: str, array: Array) -> object:
    """Give what `orjson.dumps(…, option=OPT_SERIALIZE_NUMPY)` writes as nested lists, exactly.

    That is the array itself wherever orjson takes it. Raises InferenceFailed for what JSON cannot
    carry: NaN, infinity, bytes that are not UTF-8.
    """
    dtype = array.dtype
    kind = dtype.kind
    if kind == "O":
        return _strings(name, array)
    if kind in "fV":  # ml_dtypes' are mostly V
        if dtype.itemsize < 4:
            array = array.astype(_WRITTEN_AS[dtype])
        if not _finite(array):
            index = int(np.isfinite(array).argmin())
            raise _unwritable(name, f"has {array.ravel()[index]!s}{_at(index, array.shape)}")
    if not array.ndim:
        # ONNX Runtime's INT64 are numpy's longlong, which orjson takes in arrays only.
        return array[()] if array.dtype.kind == "f" else array.item()
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


WRITTEN_AT_ONCE = 1 << 18
"""Of a longer array, so much is written at once: no other thread runs while orjson writes."""


def in_parts(value: object) -> object:
    """Give the same JSON as `value` of `encode_tensor`, written already where it is long."""
    if isinstance(value, np.ndarray) and value.nbytes > WRITTEN_AT_ONCE:
        return orjson.Fragment(b"".join(_written(value)))
    return value


def _written(array: Array) -> Iterator[bytes]:
    """Write an array of one dimension or more, in parts."""
    if array.nbytes <= WRITTEN_AT_ONCE:
        yield orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    row = array.nbytes // len(array)
    yield b"["
    if row > WRITTEN_AT_ONCE:
        for number, one in enumerate(array):
            yield b"," if number else b""
            yield from _written(one)
    else:
        step = WRITTEN_AT_ONCE // max(row, 1)
        for at in range(0, len(array), step):
            part = orjson.dumps(array[at : at + step], option=orjson.OPT_SERIALIZE_NUMPY)
            yield part[1:-1] if not at else b"," + part[1:-1]
    yield b"]"


# What floats of fewer bits, and all that orjson does not know, are given to it as.
_WRITTEN_AS: Mapping[np.dtype[np.generic], type[np.generic]] = {
    row.dtype: np.int8 if row.kind == "int" else np.float32
    for row in DATATYPES
    if row.packed or (row.kind == "float" and row.bits < 32)
}


def _finite(array: Array) -> bool:
    # A sum of squares is finite only if every term is. It may overflow where none is
    # infinite, so the exact test follows.
    return (
        array.size <= _SHORT and bool(np.vdot(array, array) < np.inf)  # type: ignore[arg-type]
    ) or bool(np.isfinite(array).all())


def _strings(name: str, array: Array) -> object:
    texts = np.empty(array.size, np.object_)
    for index, item in enumerate(array.ravel().tolist()):
        try:
            text = item if item.__class__ is str else item.decode()
            text.encode()
        except UnicodeError:
            raise _unwritable(
                name, f"has bytes that are not UTF-8{_at(index, array.shape)}"
            ) from None
        texts[index] = text
    return texts.reshape(array.shape).tolist()


def _unwritable(name: str, problem: str) -> InferenceFailed:
    return InferenceFailed(
        f"output {quoted(name)} {problem}, which JSON cannot carry; request it in binary form",
        blames_input=False,
    )
