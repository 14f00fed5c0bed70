"""Map the axes of an operator's inputs to the axes of its outputs, and find independent axes.

Each axis of an operator's inputs and outputs has a label, as in the terms of Einsum. Labels that
begin with a capital letter are independent. Entry i of an output along `N` depends on entry i of
the inputs with label `N`, and on all of each other input. Rows along any other label are combined.
`N c *; o i *; o -> N o ?` is the signature of a convolution, for example.

Special labels in a signature:

- `*`, at most once per tensor: all further axes, which are not independent. In an output, they are
  the further axes of the first input.
- `A*`: further axes that are independent.
- `?`: an axis of unknown size; `?*`: several such axes.
- A number: an axis of that size; `1*`: several axes of size 1.
- `=`: a tensor that must be the same for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from cohort.row_independence.sizes import Size, of_rows
from cohort.row_independence.tensors import RowAxis, Tensor, mixes, unknown

if TYPE_CHECKING:
    from cohort.row_independence.operation import Operation

AxisLabels = Sequence[str]

ALL_ROWS = "it combines all rows"
EVERY_OTHER = "it combines every row with every other row"
FIXED = "it fits a fixed number of rows only"
BY_NUMBER = "the number or the place of the rows enters the values"


def any_axes(tensor: Tensor, rank: int | None = None, letter: str = "A") -> list[str]:
    """Return independent labels for a tensor that is broadcast to `rank` axes."""
    rank = tensor.rank if rank is None else rank
    return [f"{letter}{at}" for at in range(rank - tensor.rank, rank)]


def place_rows(
    given: Sequence[tuple[Tensor, AxisLabels]], *, broadcast: bool = False, why: str = ALL_ROWS
) -> tuple[str, RowAxis] | None:
    """Find the label of the row axis, and the layout of rows; None if no tensor has rows.

    broadcast: True if a tensor without rows may have one entry along that label.
    why: The operator's effect on rows along a label that is not independent.

    Raises Unproven.
    """
    found = {(labels[one.rows.axis], one.rows) for one, labels in given if one.rows}
    if not found:
        return None
    if any(one.counts for one, _ in given):
        mixes(BY_NUMBER)
    if any(not label[0].isupper() for label, _ in found):
        mixes(why)
    if len({label for label, _ in found}) > 1:
        mixes(EVERY_OTHER)
    if len({(rows.outer, rows.inner) for _, rows in found}) > 1:
        mixes("it combines rows that are laid out in different ways")
    label, rows = found.pop()
    for one, labels in given:
        if list(labels).count(label) > (1 if one.rows else 0):
            _meet(one, list(labels), label, broadcast=broadcast)
    return label, rows


def _meet(one: Tensor, labels: list[str], label: str, *, broadcast: bool) -> None:
    if one.rows:
        mixes("it combines a row with its place")
    size = one.shape[labels.index(label)]
    if size == 1 and broadcast:
        return
    if isinstance(size, int):
        mixes(f"the rows are combined with a value that has {size} other rows")
    unknown("the rows are combined with a value that may have other rows")


def follow(
    operation: Operation,
    given: Sequence[tuple[Tensor, AxisLabels]],
    outputs: Sequence[AxisLabels],
    *,
    sizes: Mapping[str, Size] | None = None,
    dtypes: Sequence[int] = (),
    broadcast: bool = False,
    why: str = ALL_ROWS,
) -> list[Tensor]:
    """Return the outputs of an operator, from the labels of its inputs and outputs.

    sizes: Sizes of labels that differ from the inputs.
    dtypes: Datatypes of the outputs; by default, the datatype of the first input.

    Raises Unproven.
    """
    placed = place_rows(given, broadcast=broadcast, why=why)
    known = dict(sizes or {})
    for one, labels in given:
        for label, size in zip(labels, one.shape, strict=True):
            if label in known and (sizes is None or label not in sizes):
                known[label] = join_sizes(operation, known[label], size)
            else:
                known.setdefault(label, size)
    counts = any(one.counts for one, _ in given)
    found = []
    for place, labels in enumerate(outputs):
        shape = tuple(_size_of(operation, label, known) for label in labels)
        dtype = dtypes[place] if place < len(dtypes) else given[0][0].dtype
        rows = None
        if placed is not None:
            label, (_, outer, inner) = placed
            if label not in labels:
                mixes(why)
            rows = RowAxis(list(labels).index(label), outer, inner)
        found.append(
            Tensor(shape, dtype, rows, counts=counts or (rows is None and any(map(of_rows, shape))))
        )
    return found


def _size_of(operation: Operation, label: str, known: Mapping[str, Size]) -> Size:
    if label in known:
        return known[label]
    return int(label) if label.isdigit() else operation.symbols.new()


def join_sizes(operation: Operation, one: Size, other: Size) -> Size:
    """Return the size of two sizes broadcast together. A symbol may stand for 1."""
    if other in (1, one):
        return one
    if one == 1:
        return other
    if isinstance(one, int) and isinstance(other, int):
        unknown(f"sizes {one} and {other} meet")
    for number, symbol in ((one, other), (other, one)):
        if isinstance(number, int):
            return mixes(FIXED) if of_rows(symbol) else number
        if operation.is_cut_to(number, symbol):
            return symbol
    return operation.symbols.term("joined", *sorted((one, other), key=repr), least=0)


@cache
def parse_axes(text: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the labels of inputs and outputs in a signature."""
    inputs, outputs = (
        [part.split() for part in side.split(";")] for side in text.split("->", maxsplit=1)
    )
    return inputs, outputs


def apply_signature(
    operation: Operation,
    text: str,
    *,
    sizes: Mapping[str, Size] | None = None,
    dtypes: Sequence[int] = (),
    why: str = ALL_ROWS,
) -> list[Tensor]:
    """Return the outputs of an operator, from its signature. Omitted inputs have no axes.

    Raises Unproven.
    """
    inputs, outputs = parse_axes(text)
    given = []
    rest = 0
    for place, one in enumerate(operation.inputs):
        if one is None:
            continue
        if place >= len(inputs):
            unknown(f"it has an input {place}")
        labels = inputs[place]
        if labels == ["="]:
            operation.same(place)
            continue
        rest = max(rest, (one.rank - len(labels) + 1) * _stars(labels))
        given.append((one, _spread(labels, one.rank, place)))
    return follow(
        operation,
        given,
        [_spread(labels, len(labels) + _stars(labels) * (rest - 1), -1) for labels in outputs],
        sizes=sizes, dtypes=dtypes, why=why,
    )  # fmt: skip


def _stars(labels: list[str]) -> int:
    return sum(label.endswith("*") for label in labels)


def _spread(labels: list[str], rank: int, place: int) -> list[str]:
    """Return the labels of a tensor of `rank` axes; a star expands to numbered labels."""
    at = next((at for at, label in enumerate(labels) if label.endswith("*")), None)
    more = rank - len(labels) + (at is not None)
    if more < 0 or (at is None and more):
        unknown(f"input {place} has {rank} dimensions")
    if at is None:
        return labels
    star = labels[at][:-1] or f"i{max(place, 0)}."
    middle = [star if star.isdigit() else f"{star}{one}" for one in range(more)]
    return [*labels[:at], *middle, *labels[at + 1 :]]
