"""Rows and columns, as pandas and CSV have them, to a model's inputs.

A column is the input of its name where the names are those of the inputs; else all columns, in
their order, are the features of the only input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.codec.json_tensors import shown
from cohort.codec.long_json import LISTS, LongList, few_of, portions_of
from cohort.codec.long_tensors import rows_of
from cohort.codec.predict_request import make_input
from cohort.errors import InvalidInput, quoted
from cohort.tensors import Array, Arrays, TensorSpec, check_names

CELL_WORK = 4
"""A byte of a table takes as long to read as so many of JSON, besides its own."""


class Table:
    """A table as JSON has it.

    columns: Their names; None: they have none.
    rows: Lists of cells, or objects that have them by the names of columns.
    first: The first of the rows.
    names: Those of the columns; None: they have none.
    """

    def __init__(self, columns: Sequence[str] | None, rows: list[Any] | LongList) -> None:
        self._rows = rows
        self.first = rows[0]
        self.names = [*self.first] if isinstance(self.first, dict) else columns

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays of the columns. Raises InvalidInput."""
        for spec in specs:
            spec.dtype  # noqa: B018 - raises for what cannot be sent
        named, names = isinstance(self.first, dict), self.names
        width = _width(self.first) if names is None else len(names)
        places = place_inputs(names, width, specs)
        if places is None and not named:
            return {specs[0].name: make_input(specs[0], self._rows)}
        columns = columns_of(specs, places, width)
        first = 0
        for rows in portions_of(self._rows):
            cells = _in_order(rows, names or (), first) if named else rows
            check_rows(cells, width, first)
            first += len(rows)
            for column in columns:
                column.add(cells)
        return {column.spec.name: column.array() for column in columns}


def _width(row: object) -> int:
    if not isinstance(row, LISTS):
        raise InvalidInput(f"the row at [0] must be a list, got {shown(row)}")
    return len(row)


def _in_order(rows: Sequence[Any], names: Sequence[str], first: int) -> list[list[Any]]:
    """The cells of rows that are objects, in the order of the first of all."""
    known = {*names}
    for number, row in enumerate(rows, first):
        if not isinstance(row, dict) or row.keys() != known:
            raise InvalidInput(f"the row at [{number}] has other columns than the first")
    return [[row[name] for name in names] for row in rows]


def columns_of(
    specs: Sequence[TensorSpec], places: Sequence[int] | None, width: int
) -> list[Column]:
    """An empty column for each input, as `place_inputs` places them in a table of a width."""
    if places is None:
        return [Column(specs[0], range(width))]
    return [Column(spec, place) for spec, place in zip(specs, places, strict=True)]


class Column:
    """An input that is made of the column at a `place`, or, at a range, of all columns."""

    def __init__(self, spec: TensorSpec, place: int | range) -> None:
        self.spec = spec
        self._place = place
        self._rows = rows_of(spec)

    def add(self, rows: Sequence[list[Any]]) -> None:
        """Add the cells of some rows. Raises InvalidInput."""
        cells: list[Any] = [*rows]
        if isinstance(self._place, int):
            place = self._place
            cells = [row[place] for row in rows]
            if is_wide(self.spec) and not isinstance(cells[0], list):
                cells = [[cell] for cell in cells]
        self._rows.add(cells)

    def array(self) -> Array:
        """The array of all that was added."""
        return self._rows.array()


def is_wide(spec: TensorSpec) -> bool:
    """Whether an input that is one column has the shape [N, 1], as scikit-learn's exporter says."""
    return spec.shape is not None and len(spec.shape) == 2


def check_rows(rows: Sequence[Any], width: int, first: int) -> None:
    """Raise InvalidInput for a row that has not one cell for each column."""
    for number, row in enumerate(rows, first):
        if not isinstance(row, list):
            raise InvalidInput(f"the row at [{number}] must be a list, got {shown(row)}")
        if len(row) != width:
            raise InvalidInput(f"the row at [{number}] has {len(row)} cells, not {width}")


def place_inputs(
    columns: Sequence[str] | None, width: int, specs: Sequence[TensorSpec]
) -> Sequence[int] | None:
    """The column that each input is; None where all columns are the features of the only one.

    columns: Their names; None: they have none, and are the inputs in the model's order.
    width: How many there are.

    Raises InvalidInput.
    """
    names = [spec.name for spec in specs]
    if columns is not None and len(columns) == len(names) and {*columns} == {*names}:
        place_of = {name: place for place, name in enumerate(columns)}
        return [place_of[name] for name in names]
    if len(specs) == 1:
        return (
            [0] if width == 1 and specs[0].shape is not None and len(specs[0].shape) == 1 else None
        )
    if columns is not None:
        twice = [name for name, times in Counter(columns).items() if times > 1]
        if twice:
            raise InvalidInput(f"the column {quoted(twice[0])} is there twice")
        check_names(specs, dict.fromkeys(columns))
    if width != len(specs):
        raise InvalidInput(f"the table has {width} columns, and the model {len(specs)} inputs")
    return range(width)


def table_of(document: Mapping[str, Any], key: str) -> Table:
    """The table under `dataframe_split` or `dataframe_records`. Raises InvalidInput."""
    value = document[key]
    if key == "dataframe_records":
        table = Table(None, _rows_of(quoted(key), value))
        if not isinstance(table.first, dict):
            raise InvalidInput(f"each row must be an object, got {shown(table.first)} at [0]")
        return table
    if not isinstance(value, dict):
        raise InvalidInput(f"{quoted(key)} must be an object, got {shown(value)}")
    columns = value.get("columns")
    if columns is not None and not isinstance(columns, LISTS):
        raise InvalidInput(f"'columns' must be a list of names, got {shown(columns)}")
    rows = _rows_of("'data'", value.get("data"))
    return Table(None if columns is None else [*map(str, few_of(columns))], rows)


def _rows_of(what: str, value: Any) -> list[Any] | LongList:
    if not isinstance(value, LISTS):
        raise InvalidInput(f"{what} must be a list of rows, got {shown(value)}")
    if value == []:
        raise InvalidInput(f"{what} must have at least one row, got none")
    return value
