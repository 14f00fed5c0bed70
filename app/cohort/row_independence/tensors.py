"""What is known of a tensor: its shape, and where its rows are.

A tensor is the same whatever rows are in a run, and however many; or it is made of the number of
rows alone; or its entries along one axis are of the rows: entry i is a function of row i of the
inputs, and of what is the same for all. Anything else is `Lost`.
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
"""The elements of a tensor that are followed."""

BOOL, STRING, FLOAT, INT32, INT64 = 9, 8, 1, 6, 7
"""Numbers of ONNX's TensorProto.DataType."""


class RowAxis(NamedTuple):
    """Where rows are: `axis` is outer * N * inner entries long, in this order of nesting.

    Reshape merges rows with other axes so, and splits them again.
    """

    axis: int
    outer: Size = 1
    inner: Size = 1


class RowPlace(NamedTuple):
    """Values along `axis` that tell rows apart: row i has i * stride, or up to a stride more.

    full: Whether something below a stride was added; else it is i * stride exactly.
    """

    axis: int
    stride: Size = 1
    full: bool = False

    @property
    def is_row_number(self) -> bool:
        """Whether the values are 0, 1, 2, …"""
        return self.stride == 1


class Loss(IntEnum):
    """How much is known where rows are lost; the worst for a user to hear first."""

    RANDOM = 0
    MIXES = 1
    UNKNOWN = 2


class Unproven(Exception):
    """Raised by a rule: rows cannot be followed through its node."""

    def __init__(self, level: Loss, reason: str) -> None:
        super().__init__(reason)
        self.level, self.reason = level, reason


def mixes(reason: str) -> NoReturn:
    """Say that a node combines rows, as far as can be shown."""
    raise Unproven(Loss.MIXES, reason)


def unknown(reason: str) -> NoReturn:
    """Say that a node is not understood."""
    raise Unproven(Loss.UNKNOWN, reason)


class NodePlace(NamedTuple):
    """Which node of a model.

    path: Its index among the nodes of the main graph. Of a node in another graph: the index of the
        node that has that graph, the index of the graph among that node's, and the index in there,
        at any depth. The body of a function is behind the graphs of the node that calls it. Empty
        for no node.
    name: As the file has it, cut where it is long; "" where it has none.
    """

    path: tuple[int, ...] = ()
    name: str = ""


NO_NODE = NodePlace()


class Lost(NamedTuple):
    """A value whose rows were lost at the node with this number, the first of all such.

    node: The node in words; `reason` what it does.
    by_values: As of a Tensor.
    place: Where the node is; default: not at a node.
    """

    number: int
    level: Loss
    node: str
    reason: str
    by_values: bool = False
    place: NodePlace = NO_NODE


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of which something is known.

    shape: Its sizes; of a tensor that does not only count rows, those of other axes than the rows'
        are made without the number of rows.
    dtype: A number of ONNX's TensorProto.DataType; 0: not known.
    rows: Where its rows are; None: it is the same for all rows.
    counts: Whether it is made of the number of rows: sizes, row numbers.
    elements: The elements of a small one that are followed.
    place: The axis along which its values tell rows apart; of one that counts.
    columns: Such places by their index along the last axis, as GatherND takes them.
    below: What its values are at least 0 and less than, as indices.
    padding: The text with which shorter rows were padded: the last size depends on all rows.
    by_values: Whether it depends on what is in the inputs, besides their shapes.
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
        """The number of axes."""
        return len(self.shape)

    @property
    def same(self) -> bool:
        """Whether it is the same whatever rows there are."""
        return self.rows is None and not self.counts

    def holds(self, count: Size) -> bool:
        """Whether it keeps what the class promises where there are `count` rows."""
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
    """A tensor whose elements are known, numbers or sizes."""
    array = np.empty(np.shape(elements), dtype=object)
    array[...] = elements
    counts = any(map(of_rows, array.ravel()))
    return Tensor(array.shape, dtype, counts=counts, elements=array)


def sized(shape: Sequence[Size], dtype: int) -> Tensor:
    """A tensor without rows; it counts them where its shape does."""
    return Tensor(tuple(shape), dtype, counts=any(map(of_rows, shape)))


def without_elements(tensor: Tensor) -> Tensor:
    """The same tensor, its elements forgotten."""
    return replace(tensor, elements=None, below=None)
