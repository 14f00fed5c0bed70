"""`inputs.<name>.date`: dates and times as text, whose parts are numbers for the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from math import nan

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InvalidInput, quoted
from cohort.processing.features import Features, check_text
from cohort.processing.steps import Check, StepContext
from cohort.tensors import Array, Arrays, TensorSpec

FEW_DATES = 32
"""Maximum dates to parse on the event loop, which takes less than 0.1 ms."""

DATES_AT_ONCE = 1 << 12

LONGEST = 40
"""Maximum characters of a date."""

FIRST_DAY = date(1970, 1, 1).toordinal()

PARTS: Mapping[str, Callable[[datetime], float]] = {
    "year": lambda at: at.year,
    "month": lambda at: at.month,
    "day": lambda at: at.day,
    "weekday": lambda at: at.weekday(),
    "day_of_year": lambda at: at.timetuple().tm_yday,
    "days": lambda at: at.toordinal() - FIRST_DAY,
    "hour": lambda at: at.hour,
    "minute": lambda at: at.minute,
}
"""Functions that return a part of a date as a number, by the name of the part."""


class DateStep:
    """A conversion of ISO 8601 dates to numbers. Implements `Step`. Raises LoadFailed."""

    def __init__(self, context: StepContext) -> None:
        parts = context.config.date or ()
        if not parts:
            raise context.problem(f"date: it is empty; name at least one of {', '.join(PARTS)}")
        if len({*parts}) < len(parts):
            raise context.problem("date: a part is listed twice")
        if context.config.missing not in {None, "nan"}:
            raise context.problem("missing: must be nan with date")
        self._name = context.name
        self._names = parts
        self._parts = [PARTS[part] for part in parts]
        self._features = Features(context, parts)
        missing = "" if self._features.takes_nan else None
        self.spec = TensorSpec(context.name, "BYTES", (self._features.rows,), missing=missing)
        self.fills: Sequence[str] = self._features.fills
        rows = self._features.rows
        self.example: Array = np.array(
            ["2026-01-31"] * (rows if isinstance(rows, int) else 1), np.object_
        )
        self.description = (
            f"a date as 2026-01-31 or 2026-01-31T09:30, and taken: {', '.join(parts)}"
        )

    def is_short(self, values: Array) -> bool:
        """Return True if there are few rows."""
        return values.size <= FEW_DATES

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """Return the bytes of all numbers. Raises InvalidInput."""
        del check
        return 8 * values.size * len(self._parts) + self._features.size(values.size)

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Return the model's inputs. Raises InvalidInput if a text is not a date."""
        check_text(values, self._name)
        numbers = np.empty((values.size, len(self._parts)), np.float64)
        for start in range(0, values.size, DATES_AT_ONCE):
            check()
            for row, text in enumerate(values[start : start + DATES_AT_ONCE].tolist(), start):
                numbers[row] = self._read(text, row)
        self._check(numbers, values)
        return self._features.fill(numbers)

    def _check(self, numbers: NDArray[np.float64], values: Array) -> None:
        """Raise InvalidInput if the model's datatype cannot represent a part of a date."""
        misfits = np.argwhere(~self._features.held(numbers))
        if len(misfits):
            row, place = misfits[0].tolist()
            raise InvalidInput(
                f"input {quoted(self._name)} row {row}: {quoted(values[row], 40)} has "
                f"{self._names[place]} {numbers[row, place]:.0f}, which the model's datatype does "
                f"not have ({self._features.datatypes})"
            )

    def _read(self, text: str, row: int) -> Sequence[float]:
        if not text and self.spec.missing is not None:
            return [nan] * len(self._parts)
        try:
            if len(text) > LONGEST:
                raise ValueError
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(
                f"input {quoted(self._name)} row {row}: {quoted(text, 40)} is not a "
                "date such as 2026-01-31 or 2026-01-31T09:30"
            ) from None
        return [part(at) for part in self._parts]
