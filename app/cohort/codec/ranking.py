"""Ranking of a row's scores, for all code that names classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_NAME, Array, Datatype, TensorSpec

MAX_CLASSES = 1 << 20
"""Maximum classes in the response to a request, over all rows: some 80 MB of text."""

RANKED_AT_ONCE = 1 << 16
"""Scores ranked between two calls of `check`."""

SORTED_WHOLE = 4096
"""Maximum scores of a row that are all sorted; in longer rows only the best are."""


def ranked_datatype(spec: TensorSpec) -> Datatype:
    """Return the datatype of an output; raise InvalidInput if its scores have no order."""
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind == "text":
        raise InvalidInput(
            f"output {quoted(spec.name)} of {spec.datatype} cannot be ranked into classes"
        )
    return datatype


def check_classes(spec: TensorSpec, rows: int, count: int) -> None:
    """Raise InvalidInput for more than MAX_CLASSES over all rows."""
    if rows * count > MAX_CLASSES:
        raise InvalidInput(
            f"{rows} rows of {count} classes of output {quoted(spec.name)} are more than "
            f"the {MAX_CLASSES} allowed in one request: send fewer rows, or ask for fewer classes"
        )


def best_of(
    scores: Array, kind: str, count: int, check: Callable[[], None] = lambda: None
) -> NDArray[np.intp]:
    """Return the indices of the `count` best scores of each row, best first.

    scores: [rows, classes], with at least `count` classes.
    kind: The kind of their datatype, as in `Datatype`.
    check: Called for each part; an error that it raises ends the ranking. Default: no check.

    Equal scores are in order of index. NaN is last.
    """
    rows, classes = scores.shape
    if rows * classes <= RANKED_AT_ONCE:
        found: NDArray[np.intp] = _best(scores, kind, count)
        return found
    best = np.empty((rows, count), np.intp)
    step = max(RANKED_AT_ONCE // max(classes, 1), 1)
    for at in range(0, rows, step):
        check()
        best[at : at + step] = _best(scores[at : at + step], kind, count)
    return best


def _best(scores: Array, kind: str, count: int) -> Any:
    plain: Any = scores
    if scores.dtype.isbuiltin != 1:
        plain = scores.astype(np.float32 if kind == "float" else np.int64)
    if count == 1 and scores.size:
        first = plain.argmax(axis=1)[
            :, None
        ]  # argmax takes the first of equal scores, and prefers NaN
        if kind != "float" or not np.isnan(scores_at(plain, first)).any():
            return first
    keys = -plain if kind == "float" else ~plain  # reverses the order; NaN stays last
    if count < keys.shape[1] > SORTED_WHOLE:
        return np.array([_few(row, count) for row in keys]).reshape(len(keys), count)
    return keys.argsort(axis=1, kind="stable")[:, :count]


def scores_at(scores: Array, places: NDArray[np.intp]) -> Any:
    """Return the scores at these indices of each row, as a flat array."""
    rows, classes = scores.shape
    if rows == 1:
        return scores[0].take(places[0])
    return scores.ravel().take((places + np.arange(rows)[:, None] * classes).ravel())


def _few(keys: Any, count: int) -> Any:
    last = np.partition(keys, count - 1)[count - 1] if count else keys[0]
    if last != last:  # noqa: PLR0124 - NaN: the row has fewer than `count` numbers
        return np.argsort(keys, kind="stable")[:count]
    among = np.flatnonzero(keys <= last)
    return among[np.argsort(keys[among], kind="stable")[:count]]
