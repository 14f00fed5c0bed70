"""Files of rows: their columns, and slices that can be read one by one."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from cohort.codec.tables import Place
from cohort.errors import CohortError
from cohort.extras import how_to_install
from cohort.scoring.rows import (
    SURROGATES,
    ArrowRows,
    CsvRows,
    JsonRows,
    PictureRows,
    Rows,
    content_of,
    is_utf8,
    read_line,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

MIN_SLICE_BYTES = 1 << 20
MIN_SLICE_ROWS = 16_384
SLICE_FILES = 64
MAX_SLICES = 4000
"""Limit of slices of a file, each of which has a file of results until the end."""

BLOCK_BYTES = 1 << 20

MAX_TEXT_BYTES = 1 << 20
"""Bytes of lines after which a request gets no further rows, which limits memory."""

MAX_CELL_CHARACTERS = 1 << 27
"""Limit of a cell of CSV; Python's own is 131,072."""

CELL_IN_QUOTES = re.compile(rb'(?<![^,\r\n])"(?:[^"]++|"")*+("|\Z)')
"""A cell that begins with a quote. A quote within another cell is a character of it."""

LINES_LOOKED_AT = 1000
"""Lines of JSON whose keys may be a model's columns."""

MAX_KEYS = 10_000
"""Maximum columns that keys of JSON lines become. Each row has a value for each of them."""

PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp"})


class FileUnreadable(CohortError):
    """The file to score cannot be read at all, so that no row of it can be scored."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a file.

    number: Its place among the file's slices, from 0.
    start, stop: Where it begins and ends: bytes of a text, rows of a table, or files of a folder.
    """

    number: int
    start: int
    stop: int


class Source(Protocol):
    """A file of rows. Raises FileUnreadable.

    names: The names of the columns.
    total: The number of bytes, rows or files, as `Slice.stop` counts them.
    unit: The noun for it.
    """

    names: Sequence[str]
    total: int
    unit: str

    def slices(self) -> Iterator[Slice]:
        """Yield the slices, in order, the same ones for the same file."""

    def read(self, part: Slice, places: Sequence[Place], at_once: int) -> Iterator[Rows]:
        """Yield the rows of a slice, up to `at_once` at a time."""


class CsvSource:
    """A CSV file whose first line names the columns."""

    unit = "bytes"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total = path.stat().st_size
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        with path.open("rb") as file:
            begin = _skip_bom(file)
            lines = Lines(file, self.total - begin)
            try:
                found = next(csv.reader(lines), [])
                "".join(found).encode()
            except (csv.Error, UnicodeEncodeError) as error:
                raise FileUnreadable(
                    f"{path.name}: the first line is not CSV in UTF-8: {error}"
                ) from None
        self._begin_of_rows = begin + lines.taken
        self.names: Sequence[str] = found
        if not found or not any(found):
            raise FileUnreadable(f"{path.name} is empty: the first line must name the columns")
        if all(map(_is_number, found)):
            raise FileUnreadable(
                f"{path.name}: the first line has numbers; it must name the columns"
            )
        _check_unique(path, found)

    def slices(self) -> Iterator[Slice]:
        """Yield slices that end with a row."""
        size = max(MIN_SLICE_BYTES, self.total // MAX_SLICES)
        with self.path.open("rb") as file:
            file.seek(self._begin_of_rows)
            yield from _text_slices(file, size, quotes=True)

    def read(self, part: Slice, places: Sequence[Place], at_once: int) -> Iterator[CsvRows]:
        """Yield the rows of a slice; an empty line is not a row.

        Bytes that are not UTF-8 become lone surrogates.
        """
        done = 0
        with self.path.open("rb") as file:
            file.seek(part.start)
            lines = Lines(file, part.stop - part.start)
            rows = filter(None, csv.reader(lines))
            try:
                while some := _few(rows, lines, at_once):
                    yield CsvRows(self.names, some, places)
                    done += len(some)
            except csv.Error as error:
                raise FileUnreadable(
                    f"{self.path.name} cannot be read {done} rows after byte {part.start}: {error}"
                ) from None


class JsonSource:
    """A file with a JSON object a line.

    known: Its `names`; default: the keys of its first lines.
    every_key: True if all lines count, because a file of another kind needs every column.
    """

    unit = "bytes"

    def __init__(
        self, path: Path, known: Sequence[str] | None = None, *, every_key: bool = False
    ) -> None:
        self.path = path
        self.total = path.stat().st_size
        self.names: Sequence[str] = known or self._keys(every_key=every_key)
        if not self.names:
            raise FileUnreadable(f"{path.name} has no line that is a JSON object")

    def _keys(self, *, every_key: bool) -> list[str]:
        names: dict[str, None] = {}
        with self.path.open("rb") as file:
            _skip_bom(file)
            for line in file if every_key else islice(file, LINES_LOOKED_AT):
                if isinstance(found := read_line(line), dict):
                    names.update(dict.fromkeys(found))
                if len(names) > MAX_KEYS:
                    raise FileUnreadable(
                        f"{self.path.name} has more than {MAX_KEYS} keys, which would be columns: "
                        "use a name that ends in .jsonl after --out"
                    )
        return [*names]

    def slices(self) -> Iterator[Slice]:
        """Yield slices that end with a line."""
        size = max(MIN_SLICE_BYTES, self.total // MAX_SLICES)
        with self.path.open("rb") as file:
            _skip_bom(file)
            yield from _text_slices(file, size, quotes=False)

    def read(self, part: Slice, places: Sequence[Place], at_once: int) -> Iterator[JsonRows]:
        """Yield the rows of a slice; an empty line is not a row."""
        left = part.stop - part.start
        with self.path.open("rb") as file:
            file.seek(part.start)
            while left > 0:
                some: list[bytes] = []
                stop = left - MAX_TEXT_BYTES
                while len(some) < at_once and left > max(stop, 0):
                    line = file.readline()
                    left -= len(line)
                    if line := line.strip():
                        some.append(line)
                if some:
                    yield JsonRows(self.names, [*map(read_line, some)], places)


class ParquetSource:
    """A Parquet file."""

    unit = "rows"

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open_parquet(path) as file:
            self.schema: pyarrow.Schema = file.schema_arrow
            self._groups = [
                file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)
            ]
        self.names: Sequence[str] = self.schema.names
        self.total = sum(self._groups)
        _check_unique(path, self.names)
        self._going: tuple[int, Iterator[pyarrow.RecordBatch]] | None = None

    def slices(self) -> Iterator[Slice]:
        """Yield slices, each of rows of one row group."""
        size = max(MIN_SLICE_ROWS, self.total // MAX_SLICES)
        number = begin = 0
        for rows in self._groups:
            for start in range(begin, begin + rows, size):
                yield Slice(number, start, min(start + size, begin + rows))
                number += 1
            begin += rows

    def read(self, part: Slice, places: Sequence[Place], at_once: int) -> Iterator[ArrowRows]:
        """Yield the rows of a slice. Slices of a group in their order are read in one pass."""
        at, batches = self._going or (-1, iter(()))
        if at != part.start:
            batches = self._batches_from(part.start)
        left = part.stop - part.start
        while left:
            batch = next(batches)
            taken = min(left, len(batch))
            if taken < len(batch):
                batches = _before(batch.slice(taken), batches)
            left -= taken
            for first in range(0, taken, at_once):
                yield ArrowRows(batch.slice(first, min(at_once, taken - first)), places)
        self._going = part.stop, batches

    def _batches_from(self, row: int) -> Iterator[pyarrow.RecordBatch]:
        begin = group = 0
        with _open_parquet(self.path) as file:
            try:
                for group, rows in enumerate(self._groups):
                    skip = max(row - begin, 0)
                    begin += rows
                    if skip >= rows:
                        continue
                    for batch in file.iter_batches(4096, row_groups=[group], use_threads=False):
                        if skip < len(batch):
                            yield batch.slice(skip)
                        skip = max(skip - len(batch), 0)
            except (ValueError, NotImplementedError, OSError) as error:  # as Arrow raises
                reason = " ".join(str(error).split())  # some have several lines
                raise FileUnreadable(
                    f"{self.path.name} cannot be read in row group {group}: {reason}"
                ) from None


class PictureSource:
    """A folder of pictures, in it and below it, sorted by path."""

    unit = "files"

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._read, self._size = content_of(folder)
        found = (one for one in folder.rglob("*") if one.suffix.lower() in PICTURES)
        self._files = sorted(one.relative_to(folder).as_posix() for one in found if one.is_file())
        self._folder = folder
        if (odd := next((one for one in self._files if not is_utf8(one)), None)) is not None:
            raise FileUnreadable(f"the file name {odd!r} is not UTF-8; rename it")
        if not self._files:
            raise FileUnreadable(f"{folder} has no pictures ({', '.join(sorted(PICTURES))})")
        self.names: Sequence[str] = ["file"]
        self.total = len(self._files)

    @property
    def identity(self) -> str:
        """A text that changes if a file comes, goes or changes."""
        found = [(one, (self._folder / one).stat()) for one in self._files]
        return repr([(name, one.st_size, one.st_mtime_ns) for name, one in found])

    def slices(self) -> Iterator[Slice]:
        """Yield slices of some files."""
        size = max(SLICE_FILES, self.total // MAX_SLICES)
        for number, start in enumerate(range(0, self.total, size)):
            yield Slice(number, start, min(start + size, self.total))

    def read(self, part: Slice, places: Sequence[Place], at_once: int) -> Iterator[PictureRows]:
        """Yield the files of a slice."""
        for start in range(part.start, part.stop, at_once):
            names = self._files[start : min(start + at_once, part.stop)]
            yield PictureRows(names, self._read, self._size, self._max_bytes)


class Lines(Iterator[str]):
    """The lines of the next `size` bytes of a file. `taken` counts the bytes of those read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._text = TextIOWrapper(file, "utf-8", SURROGATES, newline="")
        self._size = size
        self.taken = 0

    def __next__(self) -> str:
        line = self._text.readline() if self.taken < self._size else ""
        if not line:
            raise StopIteration
        self.taken += len(line) if line.isascii() else len(line.encode("utf-8", SURROGATES))
        return line


def _few(rows: Iterator[list[str]], lines: Lines, most: int) -> list[list[str]]:
    """Take up to `most` rows, and no further ones after MAX_TEXT_BYTES of their lines."""
    some: list[list[str]] = []
    stop = lines.taken + MAX_TEXT_BYTES
    for row in rows:
        some.append(row)
        if len(some) >= most or lines.taken >= stop:
            break
    return some


def _skip_bom(file: BinaryIO) -> int:
    """Move after the mark that some programs write before UTF-8, and return its length."""
    mark = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
    return file.seek(mark)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_unique(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise FileUnreadable(f"{path.name} has the column {twice!r} twice; rename one")


def _text_slices(file: BinaryIO, size: int, *, quotes: bool) -> Iterator[Slice]:
    """Yield slices of about `size` bytes that end with a line, and outside of quotes."""
    number, start = 0, file.tell()
    while True:
        inside, stop = False, start + size
        while inside or file.tell() < stop:
            block = file.read(BLOCK_BYTES)
            if not block:
                break
            if not block.endswith(b"\n"):
                block += file.readline()
            inside = quotes and _ends_in_cell(block, inside)
        if file.tell() == start:
            return
        yield Slice(number, start, file.tell())
        number, start = number + 1, file.tell()


def _ends_in_cell(block: bytes, inside: bool) -> bool:
    """Return True if a cell in quotes continues after these lines.

    inside: True if a cell was open before them.
    """
    if inside:
        block = b'"' + block
    last = None
    if b'"' in block:
        for last in CELL_IN_QUOTES.finditer(block):  # noqa: B007 - the last one decides
            pass
    return last is not None and not last[1]


def _before(
    batch: pyarrow.RecordBatch, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    yield batch
    yield from batches


def check_parquet(name: str) -> None:
    """Raise FileUnreadable if Parquet cannot be read or written here."""
    if find_spec("pyarrow") is None:
        raise FileUnreadable(f"{name} needs pyarrow: {how_to_install('score')}")


def _open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    check_parquet(path.name)
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra

    try:
        return parquet.ParquetFile(path)
    except ArrowException as error:
        raise FileUnreadable(f"{path.name} is not Parquet: {error}") from None
