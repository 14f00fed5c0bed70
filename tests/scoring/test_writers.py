"""The results of slices, joined into one file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.scoring.rows import ArrowRows
from cohort.scoring.scorer import Scored
from cohort.scoring.sources import ParquetSource
from cohort.scoring.writers import GROUP_ROWS, ParquetFormat
from cohort.tensors import TensorSpec
from tests.examples import examples

ROWS = GROUP_ROWS + 20_000
TABLE = pyarrow.table(
    {
        "number": np.arange(ROWS) % 777,
        "kind": pyarrow.array([f"k{one % 5}" for one in range(ROWS)]).dictionary_encode(),
        "bytes": pyarrow.array([{"bytes": b"%d" % one} for one in range(ROWS)]),
        "list": pyarrow.array([[one % 3] * (one % 4) for one in range(ROWS)]),
    }
)
Y = TensorSpec("y", "FP32", ("N", 1))


@settings(max_examples=examples(6), deadline=None)
@given(
    slices=st.lists(st.integers(1, ROWS - 1), max_size=3, unique=True),
    requests=st.lists(st.integers(1000, 20_000), min_size=1, max_size=3),
)
def test_bytes_of_parquet_do_not_depend_on_slices_and_requests(
    slices: list[int], requests: list[int]
) -> None:
    """The same rows give the same file, whatever was written together."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pyarrow.parquet.write_table(TABLE, folder / "rows.parquet")
        whole = _joined(folder, [], [ROWS])
        found = pyarrow.parquet.read_table(folder / "whole")
        assert found.select(TABLE.column_names).to_pylist() == TABLE.to_pylist()
        assert found["y"].to_numpy().tolist() == [*range(ROWS)]
        assert _joined(folder, sorted(slices), requests) == whole


def _joined(folder: Path, slices: list[int], requests: list[int]) -> bytes:
    """Return the bytes of the whole file, written in slices and requests of these rows."""
    writes = ParquetFormat(ParquetSource(folder / "rows.parquet"), [Y])
    batch = TABLE.combine_chunks().to_batches()[0]
    parts = []
    for number, (start, stop) in enumerate(zip([0, *slices], [*slices, ROWS], strict=True)):
        parts.append(folder / f"{number}.part")
        with writes.part(parts[-1]) as write:
            at, turn = start, 0
            while at < stop:
                count = min(requests[turn % len(requests)], stop - at)
                some = ArrowRows(batch.slice(at, count), [0])
                write(some, Scored([np.arange(at, at + count, dtype="f4")], [""] * count))
                at, turn = at + count, turn + 1
    writes.join(parts, folder / "whole")
    return (folder / "whole").read_bytes()
