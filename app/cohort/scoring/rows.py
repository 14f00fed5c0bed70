"""Some rows of a file, from its text or its tables to a model's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import orjson

from cohort.codec.binary import from_texts
from cohort.codec.csv_table import read_cells
from cohort.codec.files import File, read_files
from cohort.codec.json_tensors import FLOATS, shown
from cohort.codec.missing_values import load_json
from cohort.codec.predict_request import make_input
from cohort.codec.tables import Place, check_rows
from cohort.errors import InvalidInput, TooLarge, quoted
from cohort.tensors import Array, Arrays, TensorSpec

if TYPE_CHECKING:
    import pyarrow

A = TypeVar("A")

SURROGATES = "surrogateescape"
"""How bytes of CSV that are not UTF-8 are read, so that the result has the same bytes."""


WRITABLE_LEVELS = 250
"""Lists and objects in one another that orjson is certain to write; it reads more of them."""


class Rows(Protocol):
    """Consecutive rows of a file."""

    def __len__(self) -> int: ...

    def cut(self, start: int, stop: int) -> Rows:
        """Return the rows from `start` to before `stop`."""

    def filled(self, length: int) -> Rows:
        """Return `length` rows: these, and copies of the last one."""

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make the model's inputs. Raises InvalidInput."""

    def values(self) -> Mapping[str, Sequence[Any]]:
        """Return the values of each column, for a file of another kind."""


@dataclass(frozen=True, slots=True)
class CsvRows:
    """Rows of CSV.

    names: The names of the columns.
    cells: The text of each row's cells.
    places: The places of the model's inputs.
    """

    names: Sequence[str]
    cells: Sequence[list[str]]
    places: Sequence[Place]

    def __len__(self) -> int:
        return len(self.cells)

    def cut(self, start: int, stop: int) -> CsvRows:
        """Return the rows from `start` to before `stop`."""
        return CsvRows(self.names, self.cells[start:stop], self.places)

    def filled(self, length: int) -> CsvRows:
        """Return `length` rows: these, and copies of the last one."""
        return CsvRows(self.names, _filled(self.cells, length), self.places)

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make the model's inputs. Raises InvalidInput."""
        width = len(self.names)
        check_rows(self.cells, width, 0)
        whole = range(width)
        cells = self.cells
        if isinstance(self.places[0], range) and self.places[0] != whole:
            stop = self.places[0].stop  # a model that reads the first columns only
            cells = [row[:stop] for row in cells]
        made = read_cells(cells, specs, self.places)
        for spec in specs:
            if spec.datatype == "BYTES" and not is_utf8(map(str, made[spec.name].ravel())):
                raise InvalidInput(f"input {quoted(spec.name)} is not UTF-8")
        return made

    def full(self) -> list[list[str]]:
        """Return the cells of each row, with as many cells as there are columns."""
        width = len(self.names)
        return [
            row if len(row) == width else [*row, *[""] * (width - len(row))][:width]
            for row in self.cells
        ]

    def values(self) -> Mapping[str, Sequence[Any]]:
        """Return the text of each column; bytes that are not UTF-8 become U+FFFD."""
        columns = map(utf8_of, zip(*self.full(), strict=True))
        return dict(zip(self.names, columns, strict=True))


def _filled(some: Sequence[A], length: int) -> list[A]:
    return [*some, *[some[-1]] * (length - len(some))]


def is_utf8(texts: Iterable[str]) -> bool:
    """Return False if a text has a lone surrogate."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def utf8_of(texts: Sequence[str]) -> Sequence[str]:
    """Return the texts with U+FFFD in place of lone surrogates."""
    if is_utf8(texts):
        return texts
    return [text.encode("utf-8", SURROGATES).decode(errors="replace") for text in texts]


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Rows of JSON lines.

    names: The columns.
    lines: The object of each line, or why it is not an object.
    places: The places of the model's inputs among `names`.
    """

    names: Sequence[str]
    lines: Sequence[dict[str, Any] | str]
    places: Sequence[Place]

    def __len__(self) -> int:
        return len(self.lines)

    def cut(self, start: int, stop: int) -> JsonRows:
        """Return the rows from `start` to before `stop`."""
        return JsonRows(self.names, self.lines[start:stop], self.places)

    def filled(self, length: int) -> JsonRows:
        """Return `length` rows: these, and copies of the last one."""
        return JsonRows(self.names, _filled(self.lines, length), self.places)

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make the model's inputs. Raises InvalidInput."""
        made = {}
        for spec, place in zip(specs, self.places, strict=True):
            chosen = [place] if isinstance(place, int) else [*place]
            columns = [self._column(self.names[one]) for one in chosen]
            made[spec.name] = read_values(spec, columns, alone=isinstance(place, int))
        return made

    def _column(self, name: str) -> list[Any]:
        try:
            return [line[name] for line in self.lines]  # type: ignore[index]
        except TypeError:
            raise InvalidInput(next(one for one in self.lines if isinstance(one, str))) from None
        except KeyError:
            raise InvalidInput(
                f"there is no {quoted(name)}; null stands for a missing value"
            ) from None

    @property
    def objects(self) -> Sequence[dict[str, Any]]:
        """The object of each line; an empty one for a line that is not an object."""
        return [{} if isinstance(line, str) else line for line in self.lines]

    def values(self) -> Mapping[str, Sequence[Any]]:
        """Return the values of each column; None if a row has no value."""
        objects = self.objects
        return {name: [one.get(name) for one in objects] for name in self.names}


def read_line(line: bytes) -> dict[str, Any] | str:
    """Parse a line as an object that can be written again; return why it is not one otherwise."""
    try:
        found = load_json(line)
        if line.count(b"[") + line.count(b"{") > WRITABLE_LEVELS:
            orjson.dumps(found)
    except orjson.JSONDecodeError as error:
        return f"the line is not JSON: {error.msg}"
    except orjson.JSONEncodeError:
        return f"the line has more than {WRITABLE_LEVELS} lists and objects in one another"
    return found if isinstance(found, dict) else f"the line must be an object, got {shown(found)}"


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows of Parquet.

    batch: The rows, with all columns of the file.
    places: The places of the model's inputs.
    """

    batch: pyarrow.RecordBatch
    places: Sequence[Place]

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def cut(self, start: int, stop: int) -> ArrowRows:
        """Return the rows from `start` to before `stop`."""
        return ArrowRows(self.batch.slice(start, stop - start), self.places)

    def filled(self, length: int) -> ArrowRows:
        """Return `length` rows: these, and copies of the last one."""
        return ArrowRows(self.batch.take(_filled(range(len(self)), length)), self.places)

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make the model's inputs. Raises InvalidInput."""
        return {
            spec.name: self._input(spec, place)
            for spec, place in zip(specs, self.places, strict=True)
        }

    def _input(self, spec: TensorSpec, place: Place) -> Array:
        alone = isinstance(place, int)
        chosen = [place] if isinstance(place, int) else [*place]
        columns = [self.batch.column(one) for one in chosen]
        if spec.datatype in FLOATS and all(map(_has_numbers, columns)) and spec.missing is None:
            return _of_numbers(spec, columns, alone=alone)
        values = [[_plain(one) for one in column.to_pylist()] for column in columns]
        return read_values(spec, values, alone=alone)

    def values(self) -> Mapping[str, Sequence[Any]]:
        """Return the values of each column."""
        names = self.batch.schema.names
        return {
            name: [text_of_time(one) for one in self.batch.column(place).to_pylist()]
            for place, name in enumerate(names)
        }


def _has_numbers(column: pyarrow.Array) -> bool:
    """Return True if numpy reads the column's nulls as NaN, and each value as a number."""
    from pyarrow import types  # noqa: PLC0415 - an extra

    return bool(types.is_floating(column.type) or types.is_integer(column.type))


def _of_numbers(spec: TensorSpec, columns: Sequence[pyarrow.Array], *, alone: bool) -> Array:
    arrays = [column.to_numpy(zero_copy_only=False) for column in columns]
    with np.errstate(over="ignore", invalid="ignore"):
        made: Array = np.stack(arrays, axis=1).astype(spec.dtype)
    for place, array in enumerate(arrays):
        beyond = np.isfinite(array) & ~np.isfinite(made[:, place])
        if beyond.any():
            value = array[int(np.argmax(beyond))]
            raise InvalidInput(
                f"input {quoted(spec.name)} takes {spec.datatype}, got {value}, "
                "which is out of range"
            )
    return spec.fit(made[:, 0]) if alone else made


def _plain(value: Any) -> Any:
    """Return a value of JSON for one of Arrow."""
    return float(value) if isinstance(value, Decimal) else text_of_time(value)


def text_of_time(value: Any) -> Any:
    """Return a date or a time in ISO's form, and any other value as it is."""
    return value.isoformat() if isinstance(value, (datetime, date, time)) else value


def read_values(spec: TensorSpec, columns: Sequence[list[Any]], *, alone: bool) -> Array:
    """Make an input of the values of its columns, as in JSON. Raises InvalidInput.

    alone: True if one column is the input; False if the columns are its features.
    """
    values: list[Any] = columns[0] if alone else [list(row) for row in zip(*columns, strict=True)]
    if spec.files and all(isinstance(one, bytes) for one in values):
        return from_texts(values, files=True)
    return spec.fit(make_input(spec, values))


@dataclass(frozen=True, slots=True)
class PictureRows:
    """Files of a folder, one a row.

    names: The paths below the folder.
    read: Returns the content of a file. Raises OSError, or RemoteFailed.
    max_bytes: The largest file that is read.
    size: Returns the bytes of a file.
    """

    names: Sequence[str]
    read: Callable[[str], bytes]
    size: Callable[[str], int]
    max_bytes: int

    def __len__(self) -> int:
        return len(self.names)

    def cut(self, start: int, stop: int) -> PictureRows:
        """Return the rows from `start` to before `stop`."""
        return PictureRows(self.names[start:stop], self.read, self.size, self.max_bytes)

    def filled(self, length: int) -> PictureRows:
        """Return `length` rows: these, and copies of the last one."""
        return PictureRows(_filled(self.names, length), self.read, self.size, self.max_bytes)

    def decode(self, specs: Sequence[TensorSpec]) -> Arrays:
        """Make the model's only input. Raises InvalidInput."""
        if len(specs) != 1:
            raise InvalidInput(f"a folder of files is for a model with one input, not {len(specs)}")
        files = [
            File(specs[0].name, "application/octet-stream", self._bytes(n)) for n in self.names
        ]
        return read_files(files, specs)

    def _bytes(self, name: str) -> bytes:
        try:
            if (size := self.size(name)) > self.max_bytes:
                raise TooLarge(f"the file has {size} bytes; the limit is {self.max_bytes}")
            return self.read(name)
        except OSError as error:
            raise InvalidInput(f"the file cannot be read: {error.strerror or error}") from None

    def values(self) -> Mapping[str, Sequence[Any]]:
        """Return the paths."""
        return {"file": self.names}


def content_of(folder: Path) -> tuple[Callable[[str], bytes], Callable[[str], int]]:
    """Return functions for the content and the size of files below a folder."""
    return (
        lambda name: (folder / name).read_bytes(),
        lambda name: (folder / name).stat().st_size,
    )
