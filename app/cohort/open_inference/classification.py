"""The best classes of scores, in the format of Triton's classification extension.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cohort.codec.ranking import best_of, check_classes, ranked_datatype
from cohort.tensors import Array, TensorSpec

ModelShape = Sequence[int | str | None] | None
"""A shape as in `TensorSpec.shape`."""


def has_rows(inputs: Iterable[ModelShape], outputs: Iterable[ModelShape]) -> bool:
    """Return True if axis 0 of a model's tensors is rows: Triton's `max_batch_size` is above 0.

    Axis 0 is rows if its length is open in all tensors, or 1 in all inputs and open or 1 in all
    outputs. An output of unknown rank fits both.
    """
    lengths = {_first(shape) for shape in inputs}
    if lengths not in ({None}, {1}):
        return False
    return all(shape is None or _first(shape) in (None, *lengths) for shape in outputs)


def _first(shape: ModelShape) -> int | None:
    """Return the length of axis 0: None if open; 0, never valid for rows, if there is no axis."""
    if not shape:
        return 0
    return shape[0] if isinstance(shape[0], int) else None


def classify(
    spec: TensorSpec,
    array: Array,
    count: int,
    labels: Sequence[str] = (),
    *,
    by_row: bool = True,
    check: Callable[[], None] = lambda: None,
) -> Array:
    """Return the `count` best classes as `"score:index"` or `"score:index:label"`, best first.

    by_row: True if axis 0 is rows, the result of `has_rows`; default True.
    check: Called before each row; its exception ends the classification.

    An `array` [rows, …] gives BYTES [rows, count]; all elements of a row are its classes. Without
    rows, all elements are classes of one list, [count]. Equal scores are ordered by index, NaN
    last. If there are fewer classes than `count`, all are returned. Raises InvalidInput if the
    output's values have no order, or for more than MAX_CLASSES in all rows.
    """
    datatype = ranked_datatype(spec)
    by_row = by_row and array.ndim > 0
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    rows = array.reshape(array.shape[0], size) if by_row else array.reshape(1, -1)
    count = min(count, rows.shape[1])
    check_classes(spec, rows.shape[0], count)
    best = np.empty((rows.shape[0], count), np.object_)
    if not count:
        return best if by_row else best[0]
    places = best_of(rows, datatype.kind, count, check)
    for row, (scores, found) in enumerate(zip(rows, places, strict=True)):
        check()
        for place, index in enumerate(found.tolist()):
            label = f":{labels[index]}" if index < len(labels) else ""
            best[row, place] = f"{scores[index]!s}:{index}{label}"
    return best if by_row else best[0]
