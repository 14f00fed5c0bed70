"""Slices of files: together they have every row once, whatever is in the rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cohort.scoring import sources
from cohort.scoring.sources import CsvSource, FileUnreadable, JsonSource


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_SLICE_BYTES", 200)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    monkeypatch.setattr(sources, "MAX_SLICES", 10**9)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_no_slice_of_csv_begins_inside_of_a_cell(tmp_path: Path, end: str, mark: str) -> None:
    """Cells have quotes, commas, line ends and other alphabets; some lines are empty."""
    wanted = [[str(at), f'"{"é," * (at % 50)}"\n\n{at}', "x" * (at % 90)] for at in range(200)]
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(mark)
        csv.writer(file, lineterminator=end).writerows([["a", "b", "c"], *wanted[:100]])
        file.write(end)
        csv.writer(file, lineterminator=end).writerows(wanted[100:])
    source = CsvSource(path)
    assert source.names == ["a", "b", "c"]
    slices = [*source.slices()]
    assert len(slices) > 20
    read = [rows.cells for part in slices for rows in source.read(part, [0], 7)]
    assert [row for rows in read for row in rows] == wanted
    assert max(map(len, read)) <= 7


def test_quotes_within_a_cell_do_not_move_slices_into_a_cell(tmp_path: Path) -> None:
    """An inch sign is a character; the cell after it, in quotes, has lines."""
    path = tmp_path / "rows.csv"
    line = '%d" pipe,"line\n\n\n%d","x ""y"""\r\n'
    path.write_bytes(("a,b,c\n" + "".join(line % (at, at) for at in range(300))).encode())
    source = CsvSource(path)
    read = [rows.cells for part in source.slices() for rows in source.read(part, [0], 7)]
    wanted = [[f'{at}" pipe', f"line\n\n\n{at}", 'x "y"'] for at in range(300)]
    assert [row for rows in read for row in rows] == wanted


def test_long_rows_are_read_whole_and_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of more than a million characters is a row; its size limits a request."""
    monkeypatch.setattr(sources, "MAX_TEXT_BYTES", 2_000_000)
    monkeypatch.setattr(sources, "MIN_SLICE_BYTES", 10**9)
    names = [f"column{at}" for at in range(150_000)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(",".join(row) for row in [names] * 5))
    source = CsvSource(path)
    read = [rows.cells for part in source.slices() for rows in source.read(part, [0], 1024)]
    assert [row for rows in read for row in rows] == [names] * 4
    assert max(map(len, read)) == 2
    lines = tmp_path / "rows.jsonl"
    lines.write_text((json.dumps({"a": "x" * 1_500_000}) + "\n") * 4)
    found = JsonSource(lines)
    sizes = [len(rows) for part in found.slices() for rows in found.read(part, [0], 1024)]
    assert (sum(sizes), max(sizes)) == (4, 2)


def test_json_lines_may_begin_with_a_mark(tmp_path: Path) -> None:
    """The first line, after the mark, has the columns too."""
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"a": 1}\n', encoding="utf-8")
    assert JsonSource(path).names == ["a"]


def test_slices_of_json_lines_have_every_line(tmp_path: Path) -> None:
    """Also a last one without a line end; empty lines are none."""
    wanted = [{"at": at, "text": "é" * (at % 90)} for at in range(200)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(map(json.dumps, wanted)))
    source = JsonSource(path)
    slices = [*source.slices()]
    assert len(slices) > 20
    read = [rows.lines for part in slices for rows in source.read(part, [0], 7)]
    assert [line for lines in read for line in lines] == wanted


def test_a_quote_without_an_end_is_an_error_and_not_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell has a limit."""
    monkeypatch.setattr(sources, "MAX_CELL_CHARACTERS", 100_000)
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,"2\n' + "3,4\n" * 100_000)
    source = CsvSource(path)
    with pytest.raises(FileUnreadable, match="field larger than field limit"):
        [[*source.read(part, [0], 1024)] for part in source.slices()]


def test_json_lines_with_too_many_keys_for_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kind of file would have a value for each key in each row."""
    monkeypatch.setattr(sources, "MAX_KEYS", 10)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({f"user {number}": 1}) + "\n" for number in range(11)))
    with pytest.raises(FileUnreadable, match="more than 10 keys"):
        JsonSource(path, every_key=True)
