"""Tables as CSV, separated by commas, in UTF-8: https://www.rfc-editor.org/rfc/rfc4180."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO, TextIOWrapper
from itertools import chain, count, islice
from typing import Any

import numpy as np

from cohort.codec.json_tensors import EXACT_WHOLE, FLOATS, INTEGERS
from cohort.codec.long_tensors import Rows
from cohort.codec.missing_values import NO_WORD, missing_value, note_gaps, stand_in
from cohort.codec.tables import Place, check_rows, is_wide, place_inputs
from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec

CSV_WORK = 16
"""Cost of reading one byte of CSV, in bytes of JSON."""

MAX_LINE_CHARACTERS = 1 << 20
"""Limit on the characters of a line: it is read in one call, during which no other thread runs."""

LINES_UNTIMED = 4096
"""Lines, blank ones included, between two calls of `check`: some milliseconds."""

CELLS_AT_ONCE = 16_384
"""Cells converted in one call, during which no other thread runs: a millisecond."""


def read_csv(
    body: bytes,
    specs: Sequence[TensorSpec],
    *,
    header: bool | None = None,
    check: Callable[[], None] = lambda: None,
) -> Arrays:
    """Make arrays from a table in CSV.

    header: True if the first line has the names of the columns; default None: detect it. Names
        are those of the inputs or, if no input is BYTES, any line with a cell that is not a value.
    check: Called every LINES_UNTIMED lines; an error that it raises ends the reading. Default: no
        check.

    An empty cell is a missing value, as null in JSON. Raises InvalidInput.
    """
    for spec in specs:
        spec.dtype  # noqa: B018 - raises for what cannot be sent
    lines = csv.reader(_lines(body, check))
    try:
        first = next(lines, None)
        if first is None:
            raise InvalidInput("the CSV has no rows")
        named = _are_names(first, specs) if header is None else header
        places = place_inputs(first if named else None, len(first), specs)
        columns = [_Cells(spec, place) for spec, place in zip(specs, places, strict=True)]
        at_once = max(CELLS_AT_ONCE // max(len(first), 1), 1)
        number = 0
        some = [] if named else [first]
        while some := [*some, *islice(lines, at_once)]:
            check_rows(some, len(first), number)
            for column in columns:
                column.add(some, number)
            number += len(some)
            some = []
    except csv.Error as error:
        raise InvalidInput(f"the CSV cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise InvalidInput("the CSV is not UTF-8") from None
    if not number:
        raise InvalidInput("the CSV has column names, but no rows")
    return {column.spec.name: column.array() for column in columns}


def read_cells(
    rows: Sequence[list[str]], specs: Sequence[TensorSpec], places: Sequence[Place]
) -> Arrays:
    """Make arrays from rows of text.

    places: The place of each input, as from `place_inputs`.

    Raises InvalidInput.
    """
    columns = [_Cells(spec, place) for spec, place in zip(specs, places, strict=True)]
    for column in columns:
        column.add(rows, 0)
    return {column.spec.name: column.array() for column in columns}


def _lines(body: bytes, check: Callable[[], None]) -> Iterator[str]:
    file = TextIOWrapper(BytesIO(body), "utf-8-sig", newline="")
    for number in count():
        if number % LINES_UNTIMED == 0:
            check()
        line = file.readline(MAX_LINE_CHARACTERS)
        if not line:
            return
        if len(line) == MAX_LINE_CHARACTERS:
            raise InvalidInput(f"the CSV has a line of more than {MAX_LINE_CHARACTERS} characters")
        if line.strip("\r\n"):  # an empty line is not a row
            yield line


def _are_names(cells: Sequence[str], specs: Sequence[TensorSpec]) -> bool:
    if {*cells} == {spec.name for spec in specs}:
        return True
    return all(spec.datatype != "BYTES" for spec in specs) and not all(map(_is_value, cells))


def _is_value(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return cell.strip().lower() in _TRUTH
    return True


_TRUTH = {"true": True, "false": False, "1": True, "0": False}


class _Cells:
    """An input made from the column or columns at a `place`."""

    def __init__(self, spec: TensorSpec, place: Place) -> None:
        self.spec = spec
        self._alone = isinstance(place, int)
        self._all = isinstance(place, range)
        self._places = [place] if isinstance(place, int) else place
        value, is_nan = stand_in(spec.datatype, spec.missing)
        self._missing = float("nan") if is_nan else value
        self._is_gap = is_nan or value == NO_WORD
        self._rows = Rows(spec.name, spec.datatype)
        self._floats: list[Array] = []

    def add(self, rows: Sequence[list[str]], first: int) -> None:
        """Add the cells of some rows; `first` is the number of the first row."""
        try:
            if self.spec.datatype in FLOATS:
                exact = np.array(self._floats_of(self._cells(rows)), np.float64)
                self._floats.append(self._narrowed(exact.reshape(len(rows), -1), first))
                return
            values = self._values(rows)
        except ValueError:
            raise self._wrong(rows, first) from None
        self._rows.add(values)

    def _values(self, rows: Sequence[list[str]]) -> list[list[Any]]:
        places = self._places
        read = _READERS[self.spec.datatype]
        try:
            values = [[read(row[place]) for place in places] for row in rows]
        except ValueError:  # empty cells, or cells of another datatype
            pass
        else:
            if read is not str or not any("" in row for row in values):
                return values
        return [[self._read(row[place]) for place in places] for row in rows]

    def _cells(self, rows: Sequence[list[str]]) -> list[str]:
        if self._all:
            return [*chain.from_iterable(rows)]
        return [row[place] for row in rows for place in self._places]

    def _floats_of(self, cells: Sequence[str]) -> list[float]:
        if "_" not in ",".join(cells):
            try:
                return [*map(float, cells)]
            except ValueError:  # empty cells, or cells that are not numbers
                pass
        return [*map(self._read, cells)]

    def _is_empty(self, cell: str) -> bool:
        return not (cell if self.spec.datatype == "BYTES" else cell.strip())

    def _read(self, cell: str) -> Any:
        """Convert a cell to its value. Raises ValueError."""
        if not self._is_empty(cell):
            return _READERS[self.spec.datatype](cell)
        if self._missing is None:
            raise ValueError(cell)
        if self._is_gap:
            note_gaps()
        return self._missing

    def _narrowed(self, exact: Array, first: int) -> Array:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            array = exact.astype(BY_NAME[self.spec.datatype].dtype)
        wrong = np.isfinite(exact) & ~np.isfinite(array.astype(np.float64))
        if wrong.any():
            row, column = map(int, np.argwhere(wrong)[0])
            raise InvalidInput(
                f"input {quoted(self.spec.name)} must be {self.spec.datatype}, got "
                f"{exact[row, column]} at row {first + row}, which is out of range"
            )
        return array

    def array(self) -> Array:
        """Return the array of all added cells."""
        made = np.concatenate(self._floats) if self._floats else self._rows.array()
        return made.reshape(-1) if self._alone and not is_wide(self.spec) else made

    def _wrong(self, rows: Sequence[list[str]], first: int) -> InvalidInput:
        places = self._places
        number, place = next(
            (number, place)
            for number, row in enumerate(rows)
            for place in places
            if not _can_be(self._read, row[place])
        )
        cell = rows[number][place]
        where = f" at row {first + number}, column {place}"
        if self._is_empty(cell):
            return missing_value(self.spec.name, self.spec.datatype, "an empty cell", where)
        return InvalidInput(
            f"input {quoted(self.spec.name)} must be {self.spec.datatype}, got "
            f"{quoted(cell, 40)}{where}"
        )


def _can_be(read: Callable[[str], object], cell: str) -> bool:
    try:
        read(cell)
    except ValueError:
        return False
    return True


def _float(cell: str) -> float:
    if "_" in cell:  # Python accepts it in numbers
        raise ValueError(cell)
    return float(cell)


def _int(cell: str) -> int:
    if "_" in cell or len(cell) > 64:
        raise ValueError(cell)
    try:
        return int(cell)
    except ValueError:
        whole = float(cell)  # 3.0: pandas writes whole numbers so in a column with gaps
        if not whole.is_integer() or abs(whole) >= EXACT_WHOLE:
            raise
        return int(whole)


def _bool(cell: str) -> bool:
    truth = _TRUTH.get(cell.strip().lower())
    if truth is None:
        raise ValueError(cell)
    return truth


_READERS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(FLOATS, _float),
    **dict.fromkeys(INTEGERS, _int),
    "BOOL": _bool,
    "BYTES": str,
}
