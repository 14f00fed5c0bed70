"""Files of scored rows: the columns of the input, the model's outputs, and the errors."""

from __future__ import annotations

import csv
import shutil
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from cohort.errors import quoted
from cohort.scoring.rows import SURROGATES, ArrowRows, CsvRows, JsonRows, Rows, text_of_time
from cohort.scoring.scorer import Scored, is_single
from cohort.scoring.sources import FileUnreadable, ParquetSource, Source
from cohort.tensors import BY_NAME, Array, TensorSpec

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

ERROR = "error"
"""The column of errors, the last one."""

PART_BATCH_ROWS = 16_384
"""Rows of a batch in a part."""

GROUP_ROWS = 65_536
"""Rows of a row group in the whole file."""

JSON = orjson.OPT_SERIALIZE_NUMPY


class Format(Protocol):
    """A kind of file, of given columns."""

    @property
    def part(self) -> Callable[[Path], Any]:
        """Opens a part to write: a context manager of a function of rows and their results."""

    def join(self, parts: Sequence[Path], whole: Path) -> None:
        """Write all parts, in their order, into one file."""


Write = Callable[[Rows, Scored], None]


class CsvFormat:
    """CSV, with a header in the whole file only. Lists are written as JSON."""

    def __init__(self, names: Sequence[str], outputs: Sequence[TensorSpec]) -> None:
        self._header = [*names, *(one.name for one in outputs), ERROR]

    @contextmanager
    def part(self, path: Path) -> Iterator[Write]:
        """Open a part to write."""
        with path.open("w", encoding="utf-8", errors=SURROGATES, newline="") as file:
            rows_of = csv.writer(file, lineterminator="\n").writerows

            def write(rows: Rows, scored: Scored) -> None:
                columns = [_texts(column, scored) for column in scored.columns]
                if isinstance(rows, CsvRows):
                    added = zip(*columns, scored.errors, strict=True)
                    rows_of([*row, *new] for row, new in zip(rows.full(), added, strict=True))
                else:
                    values = [[*map(_text, some)] for some in rows.values().values()]
                    rows_of(zip(*values, *columns, scored.errors, strict=True))

            yield write

    def join(self, parts: Sequence[Path], whole: Path) -> None:
        """Write the header and all parts into one file."""
        with whole.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(self._header)
        _append(parts, whole)


class JsonFormat:
    """JSON lines. A line of the input keeps its keys, also those that no other line has."""

    def __init__(self, names: Sequence[str], outputs: Sequence[TensorSpec]) -> None:
        self._outputs = [one.name for one in outputs]

    @contextmanager
    def part(self, path: Path) -> Iterator[Write]:
        """Open a part to write."""
        with path.open("wb") as file:

            def write(rows: Rows, scored: Scored) -> None:
                columns = [scored.spread(in_json(column)) for column in scored.columns]
                added = zip(*columns, scored.errors, strict=True)
                names = [*self._outputs, ERROR]
                for one, new in zip(_objects(rows), added, strict=True):
                    if isinstance(rows, JsonRows):
                        check_added(names, one)
                    line = {**one, **dict(zip(names, new, strict=True))}
                    file.write(orjson.dumps(line, default=_for_json, option=JSON) + b"\n")

            yield write

    def join(self, parts: Sequence[Path], whole: Path) -> None:
        """Write all parts into one file."""
        whole.write_bytes(b"")
        _append(parts, whole)


class ParquetFormat:
    """Parquet. Columns of a Parquet file keep their types; others get those of their values.

    Parts are streams of Arrow, because Parquet is slow to write, and to read again.
    """

    def __init__(self, source: Source, outputs: Sequence[TensorSpec]) -> None:
        self._source = source
        self._outputs = outputs

    @contextmanager
    def part(self, path: Path) -> Iterator[Write]:
        """Open a part to write."""
        from pyarrow import ipc  # noqa: PLC0415 - an extra

        writers: list[pyarrow.ipc.RecordBatchStreamWriter] = []
        waiting: list[pyarrow.RecordBatch] = []

        def flush() -> None:
            if waiting:
                table = _one_table(waiting)
                if not writers:
                    options = ipc.IpcWriteOptions(compression="lz4")
                    writers.append(ipc.new_stream(path, table.schema, options=options))
                writers[0].write_table(table)
                waiting.clear()

        def write(rows: Rows, scored: Scored) -> None:
            waiting.append(self._batch(rows, scored))
            # Columns of other files get their types from all values of a slice.
            typed = isinstance(self._source, ParquetSource)
            if typed and sum(map(len, waiting)) >= PART_BATCH_ROWS:
                flush()

        yield write
        flush()
        for writer in writers:
            writer.close()

    def _batch(self, rows: Rows, scored: Scored) -> pyarrow.RecordBatch:
        import pyarrow  # noqa: PLC0415 - an extra

        columns: dict[str, pyarrow.Array]
        if isinstance(rows, ArrowRows):
            columns = dict(zip(rows.batch.schema.names, rows.batch.columns, strict=True))
        else:
            columns = {}
            for name, some in rows.values().items():
                with _in_parquet(name):
                    columns[name] = pyarrow.array(some)
        for spec, array in zip(self._outputs, scored.columns, strict=True):
            columns[spec.name] = _arrow_array(scored, array, _arrow_type(spec))
        columns[ERROR] = pyarrow.array(scored.errors, pyarrow.string())
        return pyarrow.RecordBatch.from_pydict(columns)

    def join(self, parts: Sequence[Path], whole: Path) -> None:
        """Write the rows of all parts into one file, in groups of GROUP_ROWS."""
        import pyarrow  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415

        schema = self._schema(parts)
        waiting = schema.empty_table()
        with _in_parquet(), parquet.ParquetWriter(whole, schema) as writer:
            for part in parts:
                for table in _tables(part):
                    waiting = pyarrow.concat_tables([waiting, _cast(table, schema)])
                    while len(waiting) >= GROUP_ROWS:
                        writer.write_table(waiting.slice(0, GROUP_ROWS))
                        waiting = waiting.slice(GROUP_ROWS)
            if len(waiting):
                writer.write_table(waiting)

    def _schema(self, parts: Sequence[Path]) -> pyarrow.Schema:
        import pyarrow  # noqa: PLC0415 - an extra

        if isinstance(self._source, ParquetSource):
            schema = self._source.schema
            for spec in self._outputs:
                schema = schema.append(pyarrow.field(spec.name, _arrow_type(spec)))
            return schema.append(pyarrow.field(ERROR, pyarrow.string()))
        schemas = [next(_tables(part)).schema for part in parts]
        if not schemas:
            added = [(one.name, _arrow_type(one)) for one in self._outputs]
            texts = [(name, pyarrow.string()) for name in (*self._source.names, ERROR)]
            return pyarrow.schema([*texts[:-1], *added, texts[-1]])
        with _in_parquet():
            return pyarrow.unify_schemas(schemas, promote_options="permissive")


def format_of(kind: str, source: Source, outputs: Sequence[TensorSpec]) -> Format:
    """Return the format of a suffix. Raises FileUnreadable if a name is there twice."""
    added = [*(one.name for one in outputs), ERROR]
    check_added(added, source.names)
    if twice := [name for name in added if added.count(name) > 1]:
        raise FileUnreadable(f"{quoted(twice[0])} would be two columns: choose other --outputs")
    if kind == ".csv":
        return CsvFormat(source.names, outputs)
    if kind == ".jsonl":
        return JsonFormat(source.names, outputs)
    return ParquetFormat(source, outputs)


def check_added(added: Sequence[str], names: Collection[str]) -> None:
    """Raise FileUnreadable if a name that scoring adds is one of the file's."""
    for name in added:
        if name in names:
            raise FileUnreadable(
                f"the file has a column {quoted(name)} already, which scoring adds: rename it"
                + ("" if name == ERROR else ", or choose other outputs with --outputs")
            )


def _objects(rows: Rows) -> Iterator[Mapping[str, Any]]:
    if isinstance(rows, JsonRows):
        yield from rows.objects
        return
    values = rows.values()
    for row in zip(*values.values(), strict=True):
        yield dict(zip(values, row, strict=True))


def in_json(column: Array) -> Sequence[Any]:
    """Return the values of rows as numbers, texts and lists; NaN and infinity become None."""
    if column.dtype.kind != "f":
        return column.tolist()  # type: ignore[no-any-return]
    # A float32 becomes the float64 of its shortest text: 0.1, not 0.10000000149011612.
    text = orjson.dumps(np.ascontiguousarray(column), option=JSON)
    return orjson.loads(text)  # type: ignore[no-any-return]


def _texts(column: Array, scored: Scored) -> Sequence[str]:
    """Write the values of a column in CSV; rows without a value are empty."""
    if column.ndim == 1 and column.dtype.kind == "f" and np.isfinite(column).all():
        # The shortest text of a float32, ten times as fast as repr of each.
        made = orjson.dumps(np.ascontiguousarray(column), option=JSON)[1:-1].decode().split(",")
        texts = iter(made)
    else:
        texts = map(_text, column)
    return ["" if error else next(texts) for error in scored.errors]


def _text(value: object) -> str:
    """Write a value in a cell of CSV; lists and objects as JSON."""
    if value is None:
        return ""
    if isinstance(value, np.ndarray | list | dict | tuple):
        plain = value if not isinstance(value, np.ndarray) or _is_plain(value) else value.tolist()
        return orjson.dumps(plain, default=_for_json, option=JSON).decode()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _for_json(value: object) -> object:
    """Return a value of Parquet that JSON lacks: bytes as base64, as in a request."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return float(value) if isinstance(value, Decimal) else str(text_of_time(value))


def _is_plain(array: Array) -> bool:
    return array.dtype.kind in "biuf" and array.dtype.itemsize > 1 and array.flags.c_contiguous


def _listed(value: Any) -> Any:
    """Return the value of a row as Python's numbers and lists."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _one_table(batches: Sequence[pyarrow.RecordBatch]) -> pyarrow.Table:
    import pyarrow  # noqa: PLC0415 - an extra

    tables = [pyarrow.Table.from_batches([one]) for one in batches]
    with _in_parquet():
        return pyarrow.concat_tables(tables, promote_options="permissive").combine_chunks()


@contextmanager
def _in_parquet(name: str = "") -> Iterator[None]:
    """Raise FileUnreadable for values that Parquet cannot hold, with the `name` of their column."""
    from pyarrow import ArrowInvalid, ArrowNotImplementedError, ArrowTypeError  # noqa: PLC0415

    try:
        yield
    except (ArrowInvalid, ArrowNotImplementedError, ArrowTypeError, OverflowError) as error:
        column = f"column {quoted(name)}" if name else "a column"
        raise FileUnreadable(
            f"{column} has values that Parquet cannot hold together: {error}. "
            "Use a name that ends in .jsonl after --out"
        ) from None


def _arrow_array(scored: Scored, array: Array, kind: pyarrow.DataType) -> pyarrow.Array:
    import pyarrow  # noqa: PLC0415 - an extra

    if scored.failed or array.dtype.kind not in "iuf" or array.ndim > 2:
        return pyarrow.array([_listed(one) for one in scored.spread(array)], kind)
    if array.ndim == 1:
        return pyarrow.array(array, kind)
    ends = np.arange(len(array) + 1, dtype=np.int32) * array.shape[1]
    return pyarrow.ListArray.from_arrays(ends, pyarrow.array(array.reshape(-1), kind.value_type))


def _arrow_type(spec: TensorSpec) -> pyarrow.DataType:
    import pyarrow  # noqa: PLC0415 - an extra

    known = BY_NAME[spec.datatype]
    if known.kind == "text":
        made = pyarrow.string()
    elif known.numpy_native:
        made = pyarrow.from_numpy_dtype(known.dtype)
    else:
        made = pyarrow.int32() if known.kind == "int" else pyarrow.float32()
    for _ in () if is_single(spec) else (spec.shape or ())[1:]:
        made = pyarrow.list_(made)
    return made


def _tables(part: Path) -> Iterator[pyarrow.Table]:
    """Yield the batches of a part, at least one."""
    import pyarrow  # noqa: PLC0415 - an extra

    with pyarrow.ipc.open_stream(part) as stream:
        for batch in stream:
            yield pyarrow.Table.from_batches([batch])


def _cast(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    import pyarrow  # noqa: PLC0415 - an extra

    for field in schema:
        if field.name not in table.schema.names:
            table = table.append_column(field, pyarrow.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)


def _append(parts: Sequence[Path], whole: Path) -> None:
    with whole.open("ab") as file:
        for part in parts:
            with part.open("rb") as some:
                shutil.copyfileobj(some, file, 1 << 20)
