"""The known facts about a tensor: its shape, and the axis of its rows.

A tensor is one of:

- the same for all runs, independent of the rows and of their number;
- computed from the number of rows alone;
- made of rows along one axis: entry i is a function of row i of the inputs and of shared values.

Any other value is `Lost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from cohort.row_independence.sizes import Size, of_rows, product

Elements = NDArray[np.object_]
"""The elements of a small tensor: int, float, bool or Poly."""

MAX_FOLLOWED = 256
"""Maximum number of elements of a tensor whose elements are followed."""

BOOL, STRING, FLOAT, INT32, INT64 = 9, 8, 1, 6, 7
"""Values of ONNX's TensorProto.DataType."""


class RowAxis(NamedTuple):
    """The location of rows: `axis` has outer * N * inner entries, in this order of nesting.

    Reshape merges rows with other axes in this layout, and splits them again.
    """

    axis: int
    outer: Size = 1
    inner: Size = 1


class RowPlace(NamedTuple):
    """Values along `axis` that identify rows: row i has i * stride, plus less than a stride.

    full: True if a number below a stride was added; otherwise the value is exactly i * stride.
    """

    axis: int
    stride: Size = 1
    full: bool = False

    @property
    def is_row_number(self) -> bool:
        """Return True if the values are 0, 1, 2, …"""
        return self.stride == 1


class Loss(IntEnum):
    """The reason category of a loss of rows; the most serious category comes first."""

    RANDOM = 0
    MIXES = 1
    UNKNOWN = 2


class Unproven(Exception):
    """Raised by a rule if rows cannot be followed through its node."""

    def __init__(self, level: Loss, reason: str) -> None:
        super().__init__(reason)
        self.level, self.reason = level, reason


def mixes(reason: str) -> NoReturn:
    """Raise Unproven for a node that appears to combine rows."""
    raise Unproven(Loss.MIXES, reason)


def unknown(reason: str) -> NoReturn:
    """Raise Unproven for a node that is not understood."""
    raise Unproven(Loss.UNKNOWN, reason)


class NodePlace(NamedTuple):
    """The position of a node in a model.

    path: The node's index in the main graph. For a node in a subgraph: the outer node's index, the
        subgraph's index in that node, and the index inside it; likewise at any depth. The body of a
        function counts after the graphs of the node that calls it. Empty for no node.
    name: The name in the file, shortened if it is long; "" if the node has no name.
    """

    path: tuple[int, ...] = ()
    name: str = ""


NO_NODE = NodePlace()


class Lost(NamedTuple):
    """A value whose rows were lost, first at the node with this number.

    node: A description of the node.
    reason: The effect of the node on rows.
    by_values: See Tensor.
    place: The position of the node; by default, no node.
    """

    number: int
    level: Loss
    node: str
    reason: str
    by_values: bool = False
    place: NodePlace = NO_NODE


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor about which something is known.

    shape: The size of each axis. Unless `counts` is true, only the row axis may depend on the
        number of rows.
    dtype: A value of ONNX's TensorProto.DataType; 0 if unknown.
    rows: The location of its rows; None if it is the same for all rows.
    counts: True if it is computed from the number of rows, for example sizes or row numbers.
    elements: The elements that are followed, for a small tensor.
    place: The axis along which its values identify rows; only for a tensor that counts.
    columns: Such places by index along the last axis, in the layout of GatherND indices.
    below: An exclusive upper bound of its values, which are at least 0, as indices are.
    padding: The text that pads shorter rows; the last size then depends on all rows.
    by_values: True if it depends on the values of the inputs, not only on their shapes.
    """

    shape: tuple[Size, ...]
    dtype: int = 0
    rows: RowAxis | None = None
    counts: bool = False
    elements: Elements | None = None
    place: RowPlace | None = None
    columns: tuple[RowPlace | None, ...] = ()
    below: Size | None = None
    padding: str | None = None
    by_values: bool = False

    @property
    def rank(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def same(self) -> bool:
        """Return True if the tensor is independent of the rows and of their number."""
        return self.rows is None and not self.counts

    def holds(self, count: Size) -> bool:
        """Return True if the invariants of the class hold for `count` rows."""
        if self.rows is None:
            return self.counts or not any(map(of_rows, self.shape))
        axis, outer, inner = self.rows
        others = [size for at, size in enumerate(self.shape) if at != axis]
        return (
            not self.counts
            and self.elements is None
            and 0 <= axis < self.rank
            and not any(map(of_rows, [outer, inner, *others]))
            and self.shape[axis] == product((outer, count, inner))
        )


class TensorSequence(tuple["Tensor | Lost", ...]):
    """A sequence of tensors whose length is known."""


Followed = Tensor | Lost | TensorSequence


def constant(elements: Any, dtype: int) -> Tensor:
    """Return a tensor with known elements, which are numbers or sizes."""
    array = np.empty(np.shape(elements), dtype=object)
    array[...] = elements
    counts = any(map(of_rows, array.ravel()))
    return Tensor(array.shape, dtype, counts=counts, elements=array)


def sized(shape: Sequence[Size], dtype: int) -> Tensor:
    """Return a tensor without rows; `counts` is true if its shape depends on their number."""
    return Tensor(tuple(shape), dtype, counts=any(map(of_rows, shape)))


def without_elements(tensor: Tensor) -> Tensor:
    """Return the tensor without its elements and their bound."""
    return replace(tensor, elements=None, below=None)
