"""Conversion of JSON to arrays: numbers, booleans and strings in nested lists.

`from_lists` is authoritative: it checks every value and reports what is wrong and where. The fast
paths are `pack_short` for short lists and `cohort.codec.simdjson_reader` for long text. They give
the same array, or None if the caller must use `from_lists`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import prod
from struct import Struct
from struct import error as PackError  # noqa: N812 - it is an exception class
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cohort.codec.long_json import LongList
from cohort.codec.missing_values import NO_WORD, Missing, missing_value, note_gaps, stand_in
from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_NAME, DATATYPES, TYPED_ARRAY, Array, TensorSpec

Shape = tuple[int, ...]

MAX_RANK = 64  # numpy's limit

MAX_TEXTS = 1 << 18
"""Maximum elements of BYTES in a request.

The runtime copies each in for 100 ns and out for 100 ns, while it holds the interpreter lock.
"""


INTEGERS: Mapping[str, tuple[int, int]] = {
    row.name: (int(known.min), int(known.max))
    for row in DATATYPES
    if row.kind == "int"
    for known in [ml_dtypes.iinfo(row.dtype)]  # type: ignore[no-untyped-call]
}
FLOATS = frozenset(row.name for row in DATATYPES if row.kind == "float")
_WANTED: Mapping[str, frozenset[type]] = {
    "BOOL": frozenset({bool}),
    "BYTES": frozenset({str, bytes}),  # bytes come from base64: JSON cannot hold them
    **dict.fromkeys(FLOATS, frozenset({int, float})),
    **dict.fromkeys(INTEGERS, frozenset({int})),
}
_LARGEST: Mapping[np.dtype[np.generic], float] = {
    BY_NAME[name].dtype: float(ml_dtypes.finfo(BY_NAME[name].dtype).max)  # type: ignore[no-untyped-call]
    for name in FLOATS
}
SHORT_ARRAY = 1024  # elements; BLAS does not wake its threads for so few


# --- Lists to arrays


def from_lists(spec: TensorSpec, value: object) -> Array:
    """Make the array that `spec` describes from nested lists or a single value.

    The value determines the rank. Dimensions below an empty list come from the spec; open ones
    are 0. Raises InvalidInput.
    """
    shape, leaves = take_apart(spec.name, value)
    if not leaves:
        shape = filled(shape, spec)
    return to_array(spec.name, spec.datatype, leaves, shape, missing=spec.missing)


def from_any(name: str, value: object) -> Array:
    """Make an array from nested lists or a single value, and infer its datatype.

    The datatype is BOOL, INT64, FP64 or BYTES. Raises InvalidInput.
    """
    if isinstance(value, LongList):
        raise InvalidInput(f"input {quoted(name)} is too long for an input that is not declared")
    shape, leaves = take_apart(name, value)
    kinds = set(map(type, leaves))
    for datatype in ("BOOL", "INT64", "FP64", "BYTES"):
        if kinds <= _WANTED[datatype]:
            return to_array(name, datatype, leaves, shape)
    odd = next((leaf for leaf in leaves if type(leaf) not in _SCALARS), None)
    raise InvalidInput(
        f"input {quoted(name)} has {shown(odd)}, which is not a number, boolean or string"
        if odd is not None or None in leaves
        else f"input {quoted(name)} has values of several kinds"
    )


_SCALARS = frozenset({bool, int, float, str, bytes})


def filled(shape: Shape, spec: TensorSpec) -> Shape:
    """Extend the shape of an empty array with the spec's dimensions; open ones are 0."""
    rest = () if spec.shape is None else spec.shape[len(shape) :]
    return (*shape, *(size if isinstance(size, int) else 0 for size in rest))


def from_data(
    name: str, datatype: str, shape: Sequence[int], data: object, missing: Missing = None
) -> Array:
    """Make an array from an Open Inference JSON tensor: `data` is flat or nested as in `shape`.

    missing: The value that replaces null; default None: NaN for floats.

    Raises InvalidInput.
    """
    wanted = checked_shape(name, datatype, shape)
    array = pack_short(datatype, data, booleans=True)
    if array is not None and (array.shape == wanted or array.shape == (prod(wanted),)):
        return array.reshape(wanted)
    found, leaves = take_apart(name, data)
    if not isinstance(data, list):
        raise InvalidInput(f"the data of input {quoted(name)} must be a list, got {shown(data)}")
    check_data(name, wanted, found, len(leaves))
    return to_array(name, datatype, leaves, wanted, missing=missing)


def check_data(name: str, wanted: Shape, found: Shape, count: int) -> None:
    """Raise InvalidInput unless data of shape `found` with `count` elements fits `wanted`."""
    if count != prod(wanted):
        raise wrong_count(name, wanted, count)
    if count and len(found) > 1 and found != wanted:
        raise InvalidInput(
            f"input {quoted(name)} has shape {list(wanted)}, but its data has {list(found)}"
        )


def checked_shape(name: str, datatype: str, shape: Sequence[int]) -> Shape:
    """Return the shape as a tuple.

    Raises InvalidInput if no array can have it, or if the datatype is unknown.
    """
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
    if datatype == "BYTES" and 0 not in shape:
        check_texts(name, prod(shape))
    # numpy's strides must be able to count the bytes, even of an empty array.
    if prod(size or 1 for size in shape) * BY_NAME[datatype].dtype.itemsize >= 1 << 63:
        raise InvalidInput(f"input {quoted(name)} has a shape of too many elements")
    return tuple(shape)


class Among(NamedTuple):
    """The position of a list that is part of a longer list; ALL for a list that is not a part.

    outer: The indices of the longer list in the lists around it.
    first: The index of the part's first element in the longer list.
    like: The shape that all elements must have, set by earlier ones; None without any.
    """

    outer: Shape = ()
    first: int = 0
    like: Shape | None = None

    def place(self, index: int, shape: Sequence[int]) -> str:
        """Write the position of the part's element number `index` in `shape`, such as `[0][3]`."""
        steps: list[int] = []
        for size in reversed(shape):
            index, step = divmod(index, size)
            steps.append(step)
        if steps:
            steps[-1] += self.first
        return "".join(f"[{step}]" for step in (*self.outer, *reversed(steps))) or "the top"

    def origin(self, depth: int) -> str:
        """Write the position of the part's first element at a depth."""
        return "[0]" * (len(self.outer) + depth) or "the top"

    def is_list(self, depth: int, node: object) -> bool:
        """Return True if nodes at a depth must be lists; `node` is the first of them."""
        known = self.like is not None and depth > 0
        return depth <= len(self.like) if known else node.__class__ is list  # type: ignore[arg-type]

    def width(self, depth: int, node: Any) -> int:
        """Return the required length of lists at a depth; `node` is the first of them."""
        return self.like[depth - 1] if self.like is not None and depth else len(node)


ALL = Among()


def check_texts(name: str, count: int) -> None:
    """Raise InvalidInput for more elements of BYTES than a request may have."""
    if count > MAX_TEXTS:
        raise InvalidInput(
            f"input {quoted(name)} has more than the {MAX_TEXTS} elements of BYTES that a request "
            "may have: send fewer rows"
        )


def take_apart(name: str, value: object, among: Among = ALL) -> tuple[Shape, list[Any]]:
    """Return the shape and the elements of nested lists. Raises InvalidInput if they are ragged."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and among.is_list(len(shape), level[0]):
        width = among.width(len(shape), level[0])
        for index, node in enumerate(level):
            if node.__class__ is not list:
                raise InvalidInput(
                    f"input {quoted(name)} is ragged: a list at {among.origin(len(shape))}, "
                    f"{shown(node)} at {among.place(index, shape)}"
                )
            if len(node) != width:
                raise uneven(name, among, width, len(node), index, shape)
        level = level[0] if len(level) == 1 else [*chain.from_iterable(level)]
        shape.append(width)
        if len(shape) + len(among.outer) > MAX_RANK:
            raise too_deep(name)
    if list in set(map(type, level)):
        index = next(index for index, node in enumerate(level) if node.__class__ is list)
        raise uneven_depth(name, among, index, shape)
    return tuple(shape), level


def to_array(
    name: str,
    datatype: str,
    leaves: list[Any],
    shape: Shape,
    among: Among = ALL,
    missing: Missing = None,
) -> Array:
    """Make an array of the elements from `take_apart`. Raises InvalidInput for a wrong element.

    Rounds to the nearest float of the datatype. Accepts 3.0 for an integer. Replaces null by
    `missing`; default None: NaN for floats. Converts nothing else.
    """
    gaps: list[int] = []
    if not _WANTED[datatype].issuperset(map(type, leaves)):
        leaves, gaps = _converted(name, datatype, leaves, shape, among, missing)
    limits = INTEGERS.get(datatype)
    dtype = BY_NAME[datatype].dtype
    if datatype in FLOATS:
        exact = np.array(leaves, np.float64)
        array = narrowed(exact, dtype)
        if array is None:
            index = _first_too_large(exact, dtype)
            raise out_of_range(name, datatype, leaves[index], index, shape, among)
        if gaps:
            array[gaps] = np.nan
            note_gaps()
        return array.reshape(shape)
    if limits is not None and leaves:
        low, high = limits
        if min(leaves) < low or max(leaves) > high:
            index = next(i for i, leaf in enumerate(leaves) if not low <= leaf <= high)
            raise out_of_range(name, datatype, leaves[index], index, shape, among)
    whole = np.int64 if dtype.kind == "V" else dtype
    return np.array(leaves, whole).astype(dtype, copy=False).reshape(shape)


EXACT_WHOLE = 1 << 53
"""Whole floats below this equal the number in their text exactly."""


_NULL = type(None)


def _converted(
    name: str, datatype: str, leaves: list[Any], shape: Shape, among: Among, missing: Missing
) -> tuple[list[Any], list[int]]:
    """Replace nulls, and whole floats for integers, by values of the datatype.

    Returns the values and the indices that are NaN. Raises InvalidInput for any other value.
    """
    wanted = _WANTED[datatype]
    whole = datatype in INTEGERS
    value, is_nan = stand_in(datatype, missing)
    if value is not None and shape and {*map(type, leaves)} <= {*wanted, _NULL}:
        nulls = [index for index, leaf in enumerate(leaves) if leaf is None]
        if value == NO_WORD:
            note_gaps()
        return [value if leaf is None else leaf for leaf in leaves], nulls if is_nan else []
    made, gaps = [*leaves], []
    for index, leaf in enumerate(leaves):
        if type(leaf) in wanted:
            continue
        if leaf is None and shape:
            if value is None:
                raise missing_value(name, datatype, "null", at_place(index, shape, among))
            made[index] = value
            if is_nan:
                gaps.append(index)
        elif whole and leaf.__class__ is float:
            if abs(leaf) >= 1 << 63:  # orjson reads integers that are too long as floats
                raise out_of_range(name, datatype, leaf, index, shape, among)
            if not leaf.is_integer() or abs(leaf) >= EXACT_WHOLE:
                raise _unfit(name, datatype, leaf, index, shape, among)
            made[index] = int(leaf)
        else:
            raise _unfit(name, datatype, leaf, index, shape, among)
    return made, gaps


def _unfit(
    name: str, datatype: str, leaf: object, index: int, shape: Shape, among: Among
) -> InvalidInput:
    return InvalidInput(
        f"input {quoted(name)} must be {datatype}, got {shown(leaf)}{at_place(index, shape, among)}"
    )


def narrowed(exact: NDArray[np.float64], dtype: np.dtype[np.generic]) -> Array | None:
    """Round finite float64 to a float `dtype`; return None if a number is out of its range."""
    if dtype == np.float64:
        return exact
    largest = _LARGEST[dtype]
    if dtype.itemsize == 1:
        # Such a type may lack infinity, NaN, zero or a sign. Some give their largest value instead.
        if exact.size and np.abs(exact).max() > largest:
            return None
    elif exact.size <= SHORT_ARRAY and np.vdot(exact, exact) < largest * largest:
        # No number is too large if the sum of squares is below this: one numpy call, not four.
        return exact.astype(dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        array = exact.astype(dtype)
    return array if np.isfinite(array).all() else None


def _first_too_large(exact: NDArray[np.float64], dtype: np.dtype[np.generic]) -> int:
    """Return the index of the first number out of the range of `dtype`; one must exist."""
    first, end = 0, len(exact)
    while end - first > 1:
        middle = (first + end) // 2
        before = narrowed(exact[first:middle], dtype) is None
        first, end = (first, middle) if before else (middle, end)
    return first


def out_of_range(
    name: str, datatype: str, value: object, index: int, shape: Shape, among: Among = ALL
) -> InvalidInput:
    """Make the error for an element out of range, at `index`."""
    return InvalidInput(
        f"input {quoted(name)} must be {datatype}, got {shown(value)}"
        f"{at_place(index, shape, among)}, which is out of range"
    )


def too_deep(name: str) -> InvalidInput:
    """Make the error for lists nested deeper than MAX_RANK."""
    return InvalidInput(f"input {quoted(name)} is nested deeper than {MAX_RANK} lists")


def uneven_depth(name: str, among: Among, index: int, shape: Sequence[int]) -> InvalidInput:
    """Make the error for a list at a depth whose first element is a number or string."""
    return InvalidInput(
        f"input {quoted(name)} is ragged: no list at {among.origin(len(shape))}, "
        f"a list at {among.place(index, shape)}"
    )


def uneven(
    name: str, among: Among, width: int, length: int, index: int, shape: Sequence[int]
) -> InvalidInput:
    """Make the error for a list whose length differs from the first at its depth."""
    return InvalidInput(
        f"input {quoted(name)} is ragged: length {width} at {among.origin(len(shape))}, "
        f"length {length} at {among.place(index, shape)}"
    )


def wrong_count(name: str, shape: Shape, count: int) -> InvalidInput:
    """Make the error for `count` elements if the shape takes another number."""
    return InvalidInput(
        f"input {quoted(name)} of shape {list(shape)} needs {prod(shape)} elements, got {count}"
    )


def at_place(index: int, shape: Sequence[int], among: Among = ALL) -> str:
    """Write the position of element number `index` in `shape`, as the end of a sentence."""
    return f" at {among.place(index, shape)}" if shape else ""


def shown(value: object) -> str:
    """Format a JSON value for its sender, on one line of limited length."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {quoted(value, 40)}"
        case list() | LongList():
            return "a list"
        case dict():
            return "an object" + (TYPED_ARRAY if "0" in value else "")
    return quoted(repr(value), 40)[1:-1]


# --- Fast path for short lists


class _Packers(dict[int, Callable[..., bytes]]):
    """`struct`'s packers of `n` numbers of one kind, by `n`.

    They reject strings, null, fractions for integers and values out of range; numpy would turn "1"
    into 1.0 and null into NaN. They accept booleans as numbers.
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
    """Make a read-only array of short nested lists; return None if `from_lists` must decide.

    `booleans` is False if the text is known to have neither `true` nor `false`.
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
