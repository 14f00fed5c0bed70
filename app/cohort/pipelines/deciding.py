"""Selection of a step's rows and input tensors. Pure functions, so they can run on a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cohort.errors import InferenceFailed
from cohort.pipelines.conditions import Condition
from cohort.pipelines.items import Each, Items, fan_out, repeated_bytes
from cohort.pipelines.rows import Part, Rows, common, first_of, select
from cohort.tensors import Array, Arrays, held_bytes

LONG_BYTES = 1 << 18
"""Bytes of tensors that are processed on the event loop, about 0.1 ms; more run on a thread."""


class Decision(NamedTuple):
    """The rows that a step runs for, and its inputs.

    items: The items of these rows that the step runs for; None: it runs for the request's rows.
    """

    rows: Rows
    inputs: Arrays
    items: Items | None = None


class Given(NamedTuple):
    """The available tensors of a step, or of the outputs.

    sources: The available parts of each input, in order of precedence.
    tensors: The parts that the condition reads.
    condition: The condition for running the step; None: no condition.
    total: Number of rows of the request; -1 if steps take the request as a whole.
    each: The inputs that have items; None: the step runs for rows.
    """

    sources: Mapping[str, Sequence[Part]]
    tensors: Mapping[str, Part]
    condition: Condition | None
    total: int
    each: Each | None = None

    @property
    def is_plain(self) -> bool:
        """Return True if every input has all rows and the step has no condition or items."""
        if self.condition is not None or self.each is not None:
            return False
        return all(parts[0].rows is None for parts in self.sources.values())

    @property
    def is_long(self) -> bool:
        """Return True if the decision reads too many bytes for the event loop."""
        parts = [part for parts in self.sources.values() for part in parts]
        size = sum(held_bytes(one.array) for one in (*parts, *self.tensors.values()))
        if self.each is not None:
            inputs = {name: parts[0].array for name, parts in self.sources.items()}
            looked_at = {name: part.array for name, part in self.tensors.items()}
            size += repeated_bytes(self.each, inputs, looked_at)
        return size > LONG_BYTES


def decide(given: Given) -> Decision | None:
    """Return the rows that a step runs for and its inputs; None if it runs for no row.

    Raises InferenceFailed if the condition cannot be evaluated, and InvalidInput as `fan_out` does.
    """
    by_rows = given.total >= 0
    parts = {name: first_of(parts, given.total, name) for name, parts in given.sources.items()}
    rows: Rows = None
    for part in (*parts.values(), *given.tensors.values()):
        rows = common(rows, part.rows)
    if rows is not None and not len(rows):
        return None
    if given.each is not None:
        inputs = {name: select(part, rows) for name, part in parts.items()}
        values = {name: select(part, rows) for name, part in given.tensors.items()}
        items, inputs = fan_out(given.each, inputs, values, given.condition)
        return Decision(rows, inputs, items)
    if given.condition is not None:
        values = {name: select(part, rows) for name, part in given.tensors.items()}
        holds = given.condition.holds(values, by_rows=by_rows)
        if not holds.any():
            return None
        if not holds.all():
            rows = _where(holds, rows, given.total)
    return Decision(rows, {name: select(part, rows) for name, part in parts.items()})


def _where(holds: Array, rows: Rows, total: int) -> Rows:
    if holds.shape != ((total if rows is None else len(rows)),):
        raise InferenceFailed("its condition does not have a value for each row")
    return np.flatnonzero(holds) if rows is None else rows[holds]


def outputs_of(given: Given) -> list[Array]:
    """Return the outputs of a pipeline, in order. Raises InferenceFailed if a row has no value."""
    outputs = []
    for name, parts in given.sources.items():
        part = first_of(parts, given.total, f"output {name!r}")
        if part.rows is not None:
            row = np.setdiff1d(np.arange(given.total), part.rows)[0]
            raise InferenceFailed(missing_output(name, f" for row {row}"))
        outputs.append(part.array)
    return outputs


def missing_output(name: str, where: str = "") -> str:
    """Return the error message for an output that no step produced."""
    return (
        f"output {name!r}: no step ran{where} that it is from; add one without a condition to its "
        "from, or to theirs"
    )


def row_of(inputs: Arrays, row: int) -> Arrays:
    """Return one row of each input."""
    return {name: array[row : row + 1] for name, array in inputs.items()}


def stacked(answers: Sequence[Sequence[Array]]) -> list[Array]:
    """Concatenate the outputs of rows that ran one by one, along axis 0. Raises InferenceFailed."""
    try:
        return [np.concatenate(each) for each in zip(*answers, strict=True)]
    except ValueError as error:
        raise InferenceFailed(
            f"its rows, which ran one by one, cannot be joined: {error}"
        ) from None
