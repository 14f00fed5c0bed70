"""Tables in CSV and JSON, as a model's inputs."""

from __future__ import annotations

import csv
import io
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec import parse_json
from cohort.codec.csv_table import CELLS_AT_ONCE, LINES_UNTIMED, read_csv
from cohort.codec.tables import table_of
from cohort.errors import DeadlineExceeded, InvalidInput
from cohort.tensors import DATATYPES, TensorSpec, check_inputs
from tests.counting import check_growth

FEATURES = TensorSpec("x", "FP32", ("N", 3))
NAME = TensorSpec("name", "BYTES", ("N",))
AGE = TensorSpec("age", "INT64", ("N", 1))
RIGHT = TensorSpec("right", "BOOL", ("N",))

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


def written(rows: list[list[Any]]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1))
def test_numbers_come_out_of_csv(rows: list[list[float]]) -> None:
    """They are exact, in the order of rows and columns."""
    found = read_csv(written(rows), [FEATURES])["x"]
    assert np.array_equal(found, np.array(rows, "f4"))


@given(st.lists(st.tuples(TEXT, st.integers(-(2**63), 2**63 - 1), st.booleans()), min_size=1))
def test_columns_come_out_of_csv(rows: list[tuple[str, int, bool]]) -> None:
    """Text may have commas, quotes and line ends; the largest numbers and booleans come out."""
    table: list[list[Any]] = [
        ["right", "age", "name"],
        *([right, age, name] for name, age, right in rows),
    ]
    found = read_csv(written(table), [NAME, AGE, RIGHT])
    check_inputs([NAME, AGE, RIGHT], found)
    assert found["name"].tolist() == [name for name, _, _ in rows]
    assert found["age"].tolist() == [[age] for _, age, _ in rows]
    assert found["right"].tolist() == [right for _, _, right in rows]


@pytest.mark.parametrize("count", [1, CELLS_AT_ONCE // 3, CELLS_AT_ONCE // 3 + 1, CELLS_AT_ONCE])
def test_many_rows_come_out_of_csv(count: int) -> None:
    """They are the same for any division into blocks."""
    rows = np.arange(3 * count).reshape(-1, 3)
    assert np.array_equal(read_csv(written(rows.tolist()), [FEATURES])["x"], rows)


@given(st.binary(max_size=200) | st.text('1,\n\r"a.-e').map(str.encode))
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    """Inputs of each datatype, one or several, are read or raise InvalidInput."""
    for specs in ([FEATURES], [NAME, AGE], [RIGHT]):
        with suppress(InvalidInput):
            read_csv(body, specs)
    for row in DATATYPES:
        with suppress(InvalidInput):
            read_csv(body, [TensorSpec("x", row.name, ("N", "M"))])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON, st.sampled_from(["dataframe_split", "dataframe_records"]), st.booleans())
def test_no_json_does_more_than_be_refused(value: Any, key: str, framed: bool) -> None:
    """A frame, or its data, is read or raises InvalidInput."""
    if framed and key == "dataframe_split":
        value = {"columns": ["name", "age"], "data": value}
    for specs in ([FEATURES], [NAME, AGE]):
        with suppress(InvalidInput):
            table_of({key: value}, key).decode(specs)


@pytest.mark.parametrize("fill", [b"1,2,3\n", b"\n", b",,\n", b"1", b'"', b'""', b"\r", b"\xc3"])
def test_csv_costs_what_it_weighs(fill: bytes) -> None:
    """32 times as many bytes take about 32 times as long, whatever they look like.

    At most 160 times, where work that grows by the square would take 1024.
    """

    def read(size: int) -> None:
        with suppress(InvalidInput):
            read_csv(fill * (size // len(fill)), [FEATURES])

    check_growth(lambda: read(1 << 14), lambda: read(1 << 19), most=160)


def test_a_long_table_is_read_in_parts() -> None:
    """Rows of a body that is not parsed at once come out as those of a short one."""
    rows = [{"name": f"name {number}", "age": number} for number in range(20_000)]
    text = str(rows).replace("'", '"').encode()
    long = parse_json(b'{"dataframe_records": ' + text + b"}")
    assert isinstance(long, dict)
    found = table_of(long, "dataframe_records").decode([AGE, NAME])
    assert found["age"].ravel().tolist() == [row["age"] for row in rows]
    assert found["name"].tolist() == [row["name"] for row in rows]


@pytest.mark.parametrize("line", [b"1,2,3\n", b"\n"])
def test_reading_csv_ends_where_its_time_is_over(line: bytes) -> None:
    """Blank lines count as well."""
    times = iter([None, None, DeadlineExceeded(1.0)])

    def check() -> None:
        if error := next(times):
            raise error

    with pytest.raises(DeadlineExceeded):
        read_csv(line * 2 * LINES_UNTIMED, [FEATURES], check=check)
    assert next(times, None) is None
