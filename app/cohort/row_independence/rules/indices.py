"""Rules of operators that select, write or count entries by index."""

from __future__ import annotations

from dataclasses import replace

from cohort.row_independence.axes import BY_NUMBER, EVERY_OTHER, any_axes, apply_signature, follow
from cohort.row_independence.operation import ML, Operation, normalized, rule
from cohort.row_independence.sizes import Size, least, of_rows, product
from cohort.row_independence.tensors import INT64, RowAxis, Tensor, mixes, sized, unknown

BY_PLACE = "it takes rows by their place, which is the same for everybody"
ANY_ROW = "each row picks among all rows of the run"


@rule("Gather")
def _gather(operation: Operation) -> Tensor:
    data, index = operation.required(0), operation.required(1)
    axis = operation.axis(0, data.rank)
    shape = (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    if data.rows and data.rows.axis == axis:
        return Tensor(shape, data.dtype, _own_row(data.rows, index, axis))
    if index.counts or of_rows(data.shape[axis]):
        mixes(BY_NUMBER)
    labels = any_axes(data)
    picked = [*labels[:axis], *any_axes(index, letter="I"), *labels[axis + 1 :]]
    (found,) = follow(
        operation,
        [
            (data, [*labels[:axis], "picked", *labels[axis + 1 :]]),
            (index, any_axes(index, letter="I")),
        ],
        [picked],
    )
    place = None
    if data.place and data.place.axis != axis:
        at = data.place.axis
        place = data.place._replace(axis=at if at < axis else at - 1 + index.rank)
    return replace(found, place=place, below=data.below)


def _own_row(rows: RowAxis, index: Tensor, axis: int) -> RowAxis:
    """Locate the rows if each index points into its own row. Raises Unproven otherwise.

    Such an index is the row number, or a position in merged rows.
    """
    place = index.place
    if place is not None and rows.outer == 1 and rows.inner == place.stride:
        return RowAxis(axis + place.axis)
    return mixes(BY_PLACE if index.same else ANY_ROW)


@rule("GatherElements")
def _gather_elements(operation: Operation) -> Tensor:
    data, index = operation.required(0), operation.required(1)
    labels = any_axes(index)
    searched = list(labels)
    searched[operation.axis(0, data.rank)] = "searched"
    return follow(
        operation, [(data, searched), (index, labels)], [labels],
        sizes=dict(zip(labels, index.shape, strict=True)), why=ANY_ROW,
    )[0]  # fmt: skip


@rule("Scatter", "ScatterElements")
def _scatter_elements(operation: Operation) -> Tensor:
    given = operation.present()
    labels = any_axes(given[0])
    labels[operation.axis(0, given[0].rank)] = "written"
    return follow(
        operation, [(one, labels) for one in given], [labels],
        sizes=dict(zip(labels, given[0].shape, strict=True)), why=ANY_ROW,
    )[0]  # fmt: skip


@rule("GatherND")
def _gather_nd(operation: Operation) -> Tensor:
    data, index = operation.required(0), operation.required(1)
    batch, width = operation.attribute("batch_dims", 0), _width(index)
    shape = (*index.shape[:-1], *data.shape[batch + width :])
    if data.rows and batch == 0 and any(index.columns):
        return Tensor(shape, data.dtype, _by_columns(data, index))
    shared = [f"B{at}" for at in range(batch)]
    kept = [f"D{at}" for at in range(data.rank - batch - width)]
    picks = [f"I{at}" for at in range(index.rank - 1 - batch)]
    (found,) = follow(
        operation,
        [
            (data, [*shared, *(f"d{at}" for at in range(width)), *kept]),
            (index, [*shared, *picks, "column"]),
        ],
        [[*shared, *picks, *kept]],
        why=BY_PLACE if index.same else ANY_ROW,
    )
    return found


def _width(index: Tensor) -> int:
    width = index.shape[-1]
    return width if isinstance(width, int) else unknown("the number of indices is not known")


def _by_columns(data: Tensor, index: Tensor) -> RowAxis:
    """Locate the rows if exactly one column of an index selects the index's own row.

    Raises Unproven otherwise.
    """
    numbers = {at: place for at, place in enumerate(index.columns) if place}
    if data.rows and list(numbers) == [data.rows.axis] and data.rows[1:] == (1, 1):
        (place,) = numbers.values()
        if place.is_row_number:
            return RowAxis(place.axis)
    return mixes(ANY_ROW)


@rule("ScatterND")
def _scatter_nd(operation: Operation) -> Tensor:
    data, index, update = (operation.required(place) for place in range(3))
    width = _width(index)
    if data.rows is None:
        if index.same and update.same:
            return replace(data, elements=None)
        if not index.rows and not update.rows:
            return (
                sized(data.shape, data.dtype)
                if data.counts
                else replace(data, elements=None, counts=True)
            )
        mixes("rows are written into a value that all share")
    axis = data.rows.axis
    if index.same and axis >= width:
        expected = data.rows._replace(axis=index.rank - 1 + axis - width)
    elif any(index.columns):
        expected = _by_columns(data, index)
    else:
        mixes("values are written into rows by their place, or into any row")
    if update.rows != expected:
        mixes("the values written into the rows do not belong to the same rows")
    return Tensor(data.shape, data.dtype, data.rows)


@rule("OneHot")
def _one_hot(operation: Operation) -> Tensor:
    index = operation.first()
    operation.same(2, what="a value that it returns")
    classes = operation.known_whole(1, "the number of classes")
    labels = any_axes(index)
    axis = operation.axis(-1, index.rank + 1)
    size = classes[0] if classes and isinstance(classes[0], int) else operation.symbols.new()
    (found,) = follow(
        operation, [(index, labels)], [[*labels[:axis], "class", *labels[axis:]]],
        sizes={"class": size}, dtypes=[operation.required(2).dtype],
    )  # fmt: skip
    return found


@rule("TopK")
def _top(operation: Operation) -> list[Tensor]:
    one = operation.first()
    axis = operation.axis(-1, one.rank)
    count = (
        [operation.attribute("k")]
        if operation.version < 10
        else operation.known_whole(1, "the value of k")
    )
    size = count[0] if count and least(count[0]) >= 0 else operation.symbols.new()
    if of_rows(size):
        mixes("the value of k follows from the number of rows")
    labels = any_axes(one)
    labels[axis] = "sorted"
    values, places = follow(
        operation, [(one, labels)], [labels, labels], sizes={"sorted": size},
        dtypes=[one.dtype, INT64], why="it sorts the rows among each other",
    )  # fmt: skip
    return [values, replace(places, below=one.shape[axis])]


@rule("ArgMax", "ArgMin")
def _best(operation: Operation) -> Tensor:
    one = operation.first()
    axis = operation.axis(0, one.rank)
    labels = any_axes(one)
    labels[axis] = "searched"
    result = list(labels)
    result[axis : axis + 1] = ["1"] if operation.attribute("keepdims", 1) else []
    (found,) = follow(
        operation, [(one, labels)], [result], dtypes=[INT64],
        why="it looks for the largest or smallest of all rows",
    )  # fmt: skip
    return replace(found, below=one.shape[axis])


@rule("Compress")
def _compress(operation: Operation) -> Tensor:
    one, condition = operation.required(0), operation.required(1)
    if not condition.same:
        mixes("the number of values that it keeps depends on the values in the rows")
    axis = operation.attribute("axis")
    if one.rows and (axis is None or normalized(axis, one.rank) == one.rows.axis):
        mixes("it drops rows")
    shape: list[Size] = [operation.symbols.new()]
    if axis is not None:
        at = normalized(axis, one.rank)
        shape = [*one.shape[:at], *shape, *one.shape[at + 1 :]]
    return Tensor(tuple(shape), one.dtype, one.rows, one.counts)


BY_CONTENT = {
    "NonZero": "the number of indices that it returns",
    "Unique": "the number of values that it returns",
    "NonMaxSuppression": "the number of boxes that it returns",
    "StringSplit": "the number of columns that it returns",
}


@rule(*BY_CONTENT)
def _by_content(operation: Operation) -> list[Tensor]:
    one = operation.first()
    if not all(each.same for each in operation.present()):
        mixes(f"{BY_CONTENT[operation.name]} depends on the contents of all rows together")
    new = operation.symbols.new
    match operation.name:
        case "NonZero":
            return [sized([one.rank, new()], INT64)]
        case "NonMaxSuppression":
            return [sized([new(), 3], INT64)]
        case "StringSplit":
            return [sized([*one.shape, new()], one.dtype), sized(one.shape, INT64)]
    count = new()
    shape: list[Size] = [count]
    if (axis := operation.attribute("axis")) is not None:
        at = normalized(axis, one.rank)
        shape = [*one.shape[:at], count, *one.shape[at + 1 :]]
    lists = (sized([size], INT64) for size in (count, new(), count))
    return [sized(shape, one.dtype), *lists]


@rule("ReverseSequence")
def _reverse(operation: Operation) -> Tensor:
    one, lengths = operation.required(0), operation.required(1)
    labels = any_axes(one, letter="x")
    labels[operation.axis(1, one.rank, "batch_axis")] = "N"
    return follow(
        operation, [(one, labels), (lengths, ["N"])], [labels],
        why="it reverses the order of the rows",
    )[0]  # fmt: skip


@rule("ArrayFeatureExtractor", domain=ML)
def _extract(operation: Operation) -> Tensor:
    one, index = operation.required(0), operation.required(1)
    count = product(index.shape)
    if one.rows and index.rows:
        mixes(EVERY_OTHER)
    if one.counts or index.counts:
        mixes(BY_NUMBER)
    if index.rows:  # all indices are concatenated
        shape = (*([1] if one.rank == 1 else one.shape[:-1]), count)
        axis, outer, inner = index.rows
        before, after = product(index.shape[:axis]), product(index.shape[axis + 1 :])
        return Tensor(shape, one.dtype, RowAxis(len(shape) - 1, before * outer, inner * after))
    operation.same(1, what="the list of features")
    signature = "f; = -> 1 k" if one.rank == 1 else "A* f; = -> A* k"
    return apply_signature(operation, signature, sizes={"k": count}, why=BY_PLACE)[0]
