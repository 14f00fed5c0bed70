"""Conversion of tables, as in pandas and CSV, to a model's inputs.

If the columns have the names of the inputs, each column is one input. Otherwise all columns are the
features of the only input. Features match by name if the model has names for them, and the rows are
objects or any of the table's names is known. Otherwise they match by order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cohort.codec.json_tensors import shown
from cohort.codec.long_json import LISTS, LongList, few_of, portions_of
from cohort.codec.long_tensors import rows_of
from cohort.codec.predict_request import make_input
from cohort.errors import InvalidInput, did_you_mean, quoted
from cohort.tensors import ANY, Array, Arrays, TensorSpec

CELL_WORK = 4
"""Cost of reading one byte of a table, in bytes of JSON, in addition to its parsing."""


class Table:
    """A table from JSON.

    columns: The names of the columns; None for columns without names.
    rows: Lists of cells, or objects of cells by column name.
    first: The first row.
    names: The names of the columns, also from rows that are objects; None without names.
    """

    def __init__(self, columns: Sequence[str] | None, rows: list[Any] | LongList) -> None:
        self._rows = rows
        self.first = rows[0]
        self.names = [*self.first] if isinstance(self.first, dict) else columns

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make arrays from the columns. Raises InvalidInput."""
        for spec in specs:
            if spec.datatype != ANY:
                spec.dtype  # noqa: B018 - raises for what cannot be sent
        named, names = isinstance(self.first, dict), self.names
        width = _width(self.first) if names is None else len(names)
        places = place_inputs(names, width, specs, objects=named)
        if places == [range(width)] and not named:
            return {specs[0].name: specs[0].fit(make_input(specs[0], self._rows))}
        columns = [Column(spec, place) for spec, place in zip(specs, places, strict=True)]
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
    """Return the cells of rows that are objects, in the column order of the table's first row."""
    known = {*names}
    for number, row in enumerate(rows, first):
        if not isinstance(row, dict):
            raise InvalidInput(f"the row at [{number}] must be an object, got {shown(row)}")
        if row.keys() == known:
            continue
        absent = [name for name in names if name not in row]
        if absent:
            raise InvalidInput(
                f"the row at [{number}] has no column {quoted(absent[0])}, which the first row "
                "has; null stands for a missing value"
            )
        other = next(name for name in row if name not in known)
        raise InvalidInput(
            f"the row at [{number}] has a column {quoted(other)}, which the first row does not have"
        )
    return [[row[name] for name in names] for row in rows]


Place = int | Sequence[int]
"""The column of an input, or the columns of its features in order."""


class Column:
    """An input made from the column or columns at a `place`."""

    def __init__(self, spec: TensorSpec, place: Place) -> None:
        self.spec = spec
        self._place = place
        self._rows = _AnyRows(spec) if spec.datatype == ANY else rows_of(spec)

    def add(self, rows: Sequence[list[Any]]) -> None:
        """Add the cells of some rows. Raises InvalidInput."""
        cells: list[Any] = [*rows]
        place = self._place
        if isinstance(place, int):
            cells = [row[place] for row in rows]
            if is_wide(self.spec) and not isinstance(cells[0], list):
                cells = [[cell] for cell in cells]
        elif not isinstance(place, range):
            cells = [[row[one] for one in place] for row in rows]
        self._rows.add(cells)

    def array(self) -> Array:
        """Return the array of all added cells."""
        return self._rows.array()


class _AnyRows:
    """Rows of an input without a declared datatype."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._cells: list[Any] = []

    def add(self, cells: list[Any]) -> None:
        """Add cells."""
        self._cells += cells

    def array(self) -> Array:
        """Return the array of all cells, with an inferred datatype. Raises InvalidInput."""
        return make_input(self._spec, self._cells)


def is_wide(spec: TensorSpec) -> bool:
    """Return True if a one-column input has shape [N, 1], as scikit-learn's exporter declares."""
    return spec.shape is not None and len(spec.shape) == 2


def check_rows(rows: Sequence[Any], width: int, first: int) -> None:
    """Raise InvalidInput for a row that does not have one cell for each column."""
    for number, row in enumerate(rows, first):
        if not isinstance(row, list):
            raise InvalidInput(f"the row at [{number}] must be a list, got {shown(row)}")
        if len(row) != width:
            raise InvalidInput(f"the row at [{number}] has {len(row)} cells, not {width}")


def place_inputs(
    columns: Sequence[str] | None,
    width: int,
    specs: Sequence[TensorSpec],
    *,
    objects: bool = False,
) -> Sequence[Place]:
    """Return the place of each input in a table.

    columns: The names of the columns; None if they are without names and in the model's order.
    width: The number of columns.
    objects: True if the rows are objects. Their keys may be the numbers of columns, as pandas
        writes frames without names.

    Raises InvalidInput.
    """
    names = [spec.name for spec in specs]
    if columns is not None and len(columns) == len(names) and {*columns} == {*names}:
        return _places(columns, names)
    if len(specs) == 1:
        (spec,) = specs
        if columns is not None and _match_by_name(columns, spec.columns, objects=objects):
            check_columns(columns, spec.columns)
            places = _places(columns, spec.columns)
            return [range(width) if places == [*range(width)] else places]
        one = width == 1 and spec.shape is not None and len(spec.shape) == 1
        return [0] if one else [range(width)]
    if columns is not None:
        check_columns(columns, names)
    if width != len(specs):
        raise InvalidInput(f"the table has {width} columns, but the model has {len(specs)} inputs")
    return range(width)


def _match_by_name(columns: Sequence[str], known: Sequence[str], *, objects: bool) -> bool:
    """Return True if columns must have the names of features that the model knows, `known`."""
    if not {*known}.isdisjoint(columns):
        return True
    return objects and len(known) > 0 and [*columns] != [*map(str, range(len(columns)))]


def _places(columns: Sequence[str], wanted: Sequence[str]) -> list[int]:
    place_of = {name: place for place, name in enumerate(columns)}
    return [place_of[name] for name in wanted]


def check_columns(columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise InvalidInput unless the columns have exactly these names, each once, in any order."""
    known = {*wanted}
    for name in columns:
        if name not in known:
            raise InvalidInput(f"column {quoted(name)} not found{did_you_mean(name, wanted)}")
    times = Counter(columns)
    for name in wanted:
        if not times[name]:
            raise InvalidInput(f"column {quoted(name)} is missing")
        if times[name] > 1:
            raise InvalidInput(f"the column {quoted(name)} is listed twice")


def has_columns(names: Collection[str], specs: Sequence[TensorSpec]) -> bool:
    """Return True if `names` include columns of the only input, and not the input itself."""
    if len(specs) != 1 or not specs[0].columns or specs[0].name in names:
        return False
    return not {*specs[0].columns}.isdisjoint(names)


def join_columns(values: Mapping[str, object], spec: TensorSpec) -> Array:
    """Make the input with the columns `values`, one list each. Raises InvalidInput."""
    check_columns([*values], spec.columns)
    one = replace(spec, shape=("N",), columns=())
    made = [make_input(replace(one, name=name), values[name]) for name in spec.columns]
    for name, array in zip(spec.columns, made, strict=True):
        if array.ndim != 1:
            raise InvalidInput(f"column {quoted(name)} must be a list of values")
        if len(array) != len(made[0]):
            raise InvalidInput(
                f"columns differ in their length: {quoted(spec.columns[0])} has {len(made[0])} "
                f"values, {quoted(name)} has {len(array)}"
            )
    return np.stack(made, axis=1)


def table_of_rows(value: Any) -> Table:
    """Read the table of a list of objects under `rows`. Raises InvalidInput."""
    table = Table(None, _rows_of("'rows'", value))
    if not isinstance(table.first, dict):
        hint = "; rows without names go under 'input'" if isinstance(table.first, LISTS) else ""
        raise InvalidInput(
            f"each of 'rows' must be an object with a value for each column, got "
            f"{shown(table.first)} at [0]{hint}"
        )
    return table


def table_of(document: Mapping[str, Any], key: str) -> Table:
    """Read the table under `dataframe_split` or `dataframe_records`. Raises InvalidInput."""
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
