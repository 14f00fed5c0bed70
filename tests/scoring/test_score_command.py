"""`cohort score`: files of every kind, rows that fail, and runs that are stopped and continue."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import Result

from cohort.scoring.sources import CsvSource
from tests import onnx_models
from tests.cli.test_cli import run
from tests.e2e.processes import ROOT
from tests.remote.servers import s3_server
from tests.waiting import wait_until

ROWS = np.random.default_rng(3).normal(size=(300, 4)).astype(np.float32).round(3)


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models mlp (3 outputs a row), one (1 output a row), and mixing (rows change others)."""
    folder = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), folder / "mlp/1/model.onnx")
    onnx_models.save(onnx_models.mlp(classes=1), folder / "one/1/model.onnx")
    onnx_models.save(onnx_models.normalized_over_rows(), folder / "mixing/1/model.onnx")
    onnx_models.save(onnx_models.several_targets(), folder / "two/1/model.onnx")
    onnx_models.save(onnx_models.rows_sum(), folder / "sum/1/model.onnx")
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return folder


def expected(models: Path, name: str) -> Any:
    session = onnxruntime.InferenceSession(str(models / name / "1/model.onnx"))
    return session.run(None, {"x": ROWS})[0]


def score(file: str, model: str, out: str, *options: str) -> Result:
    arguments = ("score", file, "--model", model, "--out", out, *options)
    return run(*arguments, COHORT_CACHE=str(Path("cache").absolute()))


def write_csv(path: str, rows: Sequence[Sequence[object]], header: Sequence[str] = "abcd") -> None:
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def read_csv(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_keeps_its_columns_and_rows_and_gets_the_outputs(models: Path) -> None:
    """Cells are unchanged, quotes and line ends in them too; columns the model lacks are kept."""
    names = [f'row "{at}",\nwith a line' for at in range(len(ROWS))]
    rows = [[name, *row.tolist()] for name, row in zip(names, ROWS, strict=True)]
    write_csv("rows.csv", rows, ["name", *"abcd"])
    result = score("rows.csv", "one", "scored.csv", "--columns", "a,b,c,d")
    assert (result.exit_code, result.stderr) == (0, "")
    found = read_csv("scored.csv")
    assert list(found[0]) == ["name", *"abcd", "y", "error"]
    assert [row["name"] for row in found] == names
    assert [row["a"] for row in found] == [str(row[0]) for row in ROWS.tolist()]
    assert {row["error"] for row in found} == {""}
    scores = np.array([row["y"] for row in found], np.float32)
    np.testing.assert_allclose(scores, expected(models, "one")[:, 0], rtol=1e-5)


def test_a_row_that_fails_has_its_error_and_the_others_their_outputs(models: Path) -> None:
    """Whatever is wrong with it: a word, a missing cell. The exit code is 1."""
    rows: list[list[object]] = [row.tolist() for row in ROWS]
    rows[7][2], rows[8], rows[299][0] = "word", [1, 2], "x"
    write_csv("rows.csv", rows)
    result = score("rows.csv", "mlp", "scored.csv")
    assert result.exit_code == 1
    assert "300 rows" in result.stdout
    assert "3 failed" in result.stdout
    found = read_csv("scored.csv")
    assert [at for at, row in enumerate(found) if row["error"]] == [7, 8, 299]
    assert "got 'word'" in found[7]["error"]
    assert "has 2 cells, not 4" in found[8]["error"]
    assert found[7]["y"] == ""
    good = [json.loads(row["y"]) for row in found if not row["error"]]
    wanted = np.delete(expected(models, "mlp"), [7, 8, 299], axis=0)
    np.testing.assert_allclose(good, wanted, rtol=1e-5)


def test_bytes_that_are_not_utf8_are_kept(models: Path) -> None:
    """In CSV as they are, and as U+FFFD in JSON. A large cell is kept too."""
    large = b"z" * 300_000
    rows = b"id,a,b,c,d\n\xe9,1,2,3,4\n" + large + b",1,2,3,4\nx,\xe9,2,3,4\n"
    Path("rows.csv").write_bytes(rows)
    options = ("--columns", "a,b,c,d")
    assert score("rows.csv", "one", "scored.csv", *options).exit_code == 1
    scored = Path("scored.csv").read_bytes().splitlines()
    assert scored[1].startswith(b"\xe9,1,2,3,4,-0.")
    assert scored[2].startswith(large + b",1,2,3,4,-0.")
    assert scored[3].startswith(b"x,\xe9,2,3,4,,")
    assert score("rows.csv", "one", "scored.jsonl", *options).exit_code == 1
    found = [json.loads(line) for line in Path("scored.jsonl").read_text().splitlines()]
    assert [found[0]["id"], found[2]["a"]] == ["\ufffd", "\ufffd"]


def test_rows_may_have_outputs_of_different_lengths(models: Path) -> None:
    """They are rows of one request that runs in pieces."""
    onnx_models.save(onnx_models.identity("FP32", ("N", "K")), models / "same/1/model.onnx")
    wanted = [[1.5], [1.0, 2.0], [3.0, 4.0], [0.25]]
    Path("rows.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in wanted))
    for kind in ("jsonl", "parquet"):
        assert score("rows.jsonl", "same", f"o.{kind}", "--columns", "x").exit_code == 0
    found = map(json.loads, Path("o.jsonl").read_text().splitlines())
    assert [line["y"] for line in found] == wanted
    assert pyarrow.parquet.read_table("o.parquet")["y"].to_pylist() == wanted


def test_a_file_without_rows_has_all_columns_of_the_result(models: Path) -> None:
    """Also as Parquet, with the outputs' types."""
    write_csv("rows.csv", [])
    assert score("rows.csv", "mlp", "scored.parquet").exit_code == 0
    schema = pyarrow.parquet.read_schema("scored.parquet")
    assert schema.names == [*"abcd", "y", "error"]
    assert schema.field("y").type == pyarrow.list_(pyarrow.float32())


def test_parquet_and_json_lines_keep_their_types(models: Path) -> None:
    """The schema and the values of the input are in the output; outputs have their own types."""
    columns: dict[str, Any] = {name: ROWS[:, at] for at, name in enumerate("abcd")}
    columns["id"] = np.arange(len(ROWS))
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, "rows.parquet", row_group_size=70)
    options = ("--columns", "a,b,c,d")
    assert score("rows.parquet", "mlp", "scored.parquet", *options).exit_code == 0
    scored = pyarrow.parquet.read_table("scored.parquet")
    assert scored.select([*"abcd", "id"]).equals(table)
    assert scored.schema.names == [*"abcd", "id", "y", "error"]
    assert scored.schema.field("y").type == pyarrow.list_(pyarrow.float32())
    np.testing.assert_allclose(scored["y"].to_pylist(), expected(models, "mlp"), rtol=1e-5)

    lines = [{"a": row[0], "extra": {"b": at}, "row": row} for at, row in enumerate(ROWS.tolist())]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    Path("rows.jsonl").write_text(text + "{\n" + json.dumps({"a": 1}) + "\n")
    assert score("rows.jsonl", "one", "scored.jsonl", "--columns", "row").exit_code == 1
    assert score("rows.jsonl", "one", "mixed.parquet", "--columns", "row").exit_code == 1
    assert pyarrow.parquet.read_table("mixed.parquet")["a"].to_pylist()[-2:] == [None, 1.0]
    *good, broken, short = map(json.loads, Path("scored.jsonl").read_text().splitlines())
    assert [{key: line[key] for key in ("a", "extra", "row")} for line in good] == lines
    np.testing.assert_allclose(
        [line["y"] for line in good], expected(models, "one")[:, 0], rtol=1e-5
    )
    assert "not JSON" in broken["error"]
    assert short == {
        "a": 1,
        "y": None,
        "error": "there is no 'row'; null stands for a missing value",
    }


@pytest.mark.parametrize(
    "values", [(1, "text"), (True, 1), ([1], 1), (1, 2**63), ({}, {})], ids=repr
)
def test_values_that_parquet_cannot_hold_are_named(values: tuple[Any, Any]) -> None:
    """The error of JSON lines names another kind of file."""
    lines = [{**dict(zip("abcd", row, strict=True)), "m": values[0]} for row in ROWS.tolist()]
    lines[-1]["m"] = values[1]
    Path("rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = score("rows.jsonl", "one", "scored.parquet", "--columns", "a,b,c,d")
    assert done.exit_code == 2
    assert "has values that Parquet cannot hold together" in done.output.replace("\n", " ")
    assert not Path("scored.parquet").exists()


def test_a_damaged_file_of_parquet_is_named() -> None:
    """If a page cannot be read, there is one line and no result."""
    pyarrow.parquet.write_table(pyarrow.table(dict(zip("abcd", ROWS.T, strict=True))), "r.parquet")
    content = bytearray(Path("r.parquet").read_bytes())
    content[4:44] = b"\xff" * 40
    Path("r.parquet").write_bytes(content)
    result = score("r.parquet", "one", "o.csv")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "r.parquet cannot be read in row group 0" in result.stderr
    assert not Path("o.csv").exists()


def test_a_key_that_only_the_last_line_has_is_a_column() -> None:
    """A file of another kind has a column for every key."""
    line = dict.fromkeys("abcd", 1)
    lines = [*[line] * 1200, {**line, "note": "last"}]
    Path("rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert score("rows.jsonl", "one", "o.csv", "--columns", "a,b,c,d").exit_code == 0
    first, *_, last = read_csv("o.csv")
    assert (first["note"], last["note"]) == ("", "last")


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.parquet"])
def test_a_line_that_is_too_deep_to_be_written_is_a_row_that_fails(out: str) -> None:
    """The others have their outputs."""
    line = {**dict.fromkeys("abcd", 1.0), "deep": 1}
    deep = json.dumps(line).replace("1}", "[" * 300 + "]" * 300 + "}")
    Path("rows.jsonl").write_text(f"{json.dumps(line)}\n{deep}\n")
    result = score("rows.jsonl", "one", out, "--columns", "a,b,c,d")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "2 rows" in result.stdout
    assert "1 failed" in result.stdout


def test_values_of_parquet_that_json_lacks_are_kept() -> None:
    """Bytes become base64, and a decimal number keeps all its digits in CSV."""
    price = Decimal("12345678901234567.89")
    times = pyarrow.array([[1]], pyarrow.list_(pyarrow.timestamp("ns")))
    columns = {"row": [[1.0, 2.0, 3.0, 4.0]], "bytes": [b"\xff"], "price": [price], "times": times}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "parts": [[b"\xff"]]}), "rows.parquet")
    assert score("rows.parquet", "one", "o.csv", "--columns", "row").exit_code == 0
    assert read_csv("o.csv")[0]["price"] == str(price)
    assert score("rows.parquet", "one", "o.jsonl", "--columns", "row").exit_code == 0
    line = json.loads(Path("o.jsonl").read_text())
    assert (line["bytes"], line["parts"], line["price"]) == ("/w==", ["/w=="], float(price))
    assert line["times"] == ["1970-01-01T00:00:00.000000001"]


def test_pictures_of_a_folder_are_scored_with_their_labels(models: Path) -> None:
    """The server's config prepares them; a file that is not a picture fails alone."""
    photo = (ROOT / "docs/guide/pictures/seven.jpg").read_bytes()
    for name in ("b.jpg", "sub/a.jpg"):
        Path("photos", name).parent.mkdir(parents=True, exist_ok=True)
        Path("photos", name).write_bytes(photo)
    Path("photos/c.png").write_bytes(b"no")
    Path("photos/notes.txt").write_text("not a picture")
    seen = models / "seen/1/model.onnx"
    seen.parent.mkdir(parents=True)
    seen.write_bytes((ROOT / "models/digits/1/model.onnx").read_bytes())
    config = "inputs: {image: {image: {}}}\noutputs: {probabilities: {labels: metadata}}\n"
    (models / "seen/config.yaml").write_text(config)
    assert score("photos", "seen", "labels.jsonl").exit_code == 1
    found = [json.loads(line) for line in Path("labels.jsonl").read_text().splitlines()]
    assert [line["file"] for line in found] == ["b.jpg", "c.png", "sub/a.jpg"]
    assert [line["probabilities_labels"] for line in found] == ["7", None, "7"]
    assert "expected a picture" in found[1]["error"]


def test_rows_that_influence_each_other_run_alone() -> None:
    """A model that subtracts the mean of its rows gives 0 for a row alone."""
    write_csv("rows.csv", ROWS[:, :3].tolist(), "abc")
    assert score("rows.csv", "mixing", "scored.csv").exit_code == 0
    assert {row["y"] for row in read_csv("scored.csv")} == {"[0.0,0.0,0.0]"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rows.csv", "mlq", "o.csv"), "model 'mlq' not found; did you mean 'mlp'?"),
        (("rows.csv", "mlp", "o.txt"), "must end in .csv, .parquet, .jsonl"),
        (("none.csv", "mlp", "o.csv"), "none.csv not found"),
        (("wide.csv", "mlp", "o.csv"), "the model reads 4 columns, the file has 5"),
        (("rows.csv", "mlp", "o.csv", "--columns", "a,b,c,e"), "the file has no column 'e'"),
        (("rows.csv", "mlp", "o.csv", "--outputs", "z"), "output 'z' not found"),
        (
            ("rows.csv", "two", "o.csv", "--columns", "a,b,c", "--outputs", "y,y"),
            "'y' would be two columns",
        ),
        (("same.csv", "one", "o.csv"), "the file has a column 'y' already"),
        (("numbers.csv", "mlp", "o.csv"), "the first line has numbers"),
        (("rows.csv", "sum", "o.csv", "--columns", "a,b,c"), "not a value for each row"),
        (("rows.csv", "mlp", "./rows.csv"), "--out is the file to score"),
        (("rows.csv", "mlp", "models.csv"), "models.csv is a folder"),
        (("late.jsonl", "one", "o.jsonl"), "the file has a column 'error' already"),
    ],
)
def test_what_cannot_be_scored_is_said_before_anything_is_written(
    arguments: tuple[str, ...], said: str
) -> None:
    """With the column or option that is wrong, and what to do."""
    write_csv("rows.csv", ROWS.tolist())
    write_csv("wide.csv", [[0, *row] for row in ROWS.tolist()], "iabcd")
    write_csv("same.csv", ROWS.tolist(), "abcy")
    write_csv("numbers.csv", ROWS.tolist(), ["1", "2", "3", "4"])
    Path("models.csv").mkdir()
    line = dict.fromkeys("abcd", 1)
    lines = [*[line] * 1200, {**line, "error": "of the file"}]
    Path("late.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    before = Path("rows.csv").read_bytes()
    result = score(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not Path(arguments[2]).is_file() or Path("rows.csv").read_bytes() == before


def test_a_run_that_was_killed_goes_on_and_writes_the_same_file() -> None:
    """The result is there only when it is whole, and what was done is not done again."""
    rows = np.random.default_rng(5).normal(size=(120_000, 4)).round(4)
    write_csv("rows.csv", rows.tolist())
    command = [sys.executable, "-m", "cohort", "score", "rows.csv", "--model", "mlp"]
    program = subprocess.Popen([*command, "--out", "scored.csv"], env=os.environ)
    kept = Path("scored.csv.partial")

    def parts() -> int:
        return len(list(kept.glob("*.part")))

    wait_until(lambda: parts() >= 2)
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert not Path("scored.csv").exists()
    before = {path: path.stat().st_mtime_ns for path in kept.glob("*.part")}
    program = subprocess.Popen([*command, "--out", "scored.csv"], env=os.environ)
    wait_until(lambda: parts() > len(before) or program.poll() is not None)
    again = {path: path.stat().st_mtime_ns for path in before if path.exists()}
    assert again.items() <= before.items()
    assert program.wait() == 0
    assert not kept.exists()
    assert score("rows.csv", "mlp", "at_once.csv").exit_code == 0
    assert Path("scored.csv").read_bytes() == Path("at_once.csv").read_bytes()


def test_a_file_that_changes_while_it_is_read_has_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rows would be of two files."""
    write_csv("rows.csv", ROWS.tolist())
    read = CsvSource.read

    def read_and_change(*arguments: Any) -> Any:
        yield from read(*arguments)
        write_csv("rows.csv", ROWS[:7].tolist())

    monkeypatch.setattr(CsvSource, "read", read_and_change)
    result = score("rows.csv", "one", "scored.csv")
    assert (result.exit_code, Path("scored.csv").exists()) == (2, False)
    assert "rows.csv changed while it was read" in result.stderr


def test_results_of_another_file_are_thrown_away() -> None:
    """The input changed after a run was stopped: everything is scored again."""
    write_csv("rows.csv", ROWS.tolist())
    assert score("rows.csv", "one", "wanted.csv").exit_code == 0
    Path("scored.csv.partial").mkdir()
    Path("scored.csv.partial/0-300-0.part").write_text("old\n" * 300)
    Path("scored.csv.partial/job").write_text("another")
    assert score("rows.csv", "one", "scored.csv").exit_code == 0
    assert Path("scored.csv").read_bytes() == Path("wanted.csv").read_bytes()


def test_files_of_a_bucket_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their s3:// addresses."""
    with s3_server(tmp_path) as server:
        bucket = server.bucket()
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        write_csv("rows.csv", ROWS.tolist())
        bucket.put("in/rows.csv", Path("rows.csv"))
        result = score(f"{bucket.url}/in/rows.csv", "one", f"{bucket.url}/out/scored.csv")
        assert (result.exit_code, result.stderr) == (0, "")
        assert score("rows.csv", "one", "scored.csv").exit_code == 0
        assert bucket.get("out/scored.csv") == Path("scored.csv").read_bytes()
        result = score(f"{bucket.url}/in/none.csv", "one", "x.csv")
        assert "none.csv not found" in result.stderr


def test_a_model_with_a_fixed_number_of_rows_gets_that_many(models: Path) -> None:
    """The last request and those of rows that failed are filled; each row has its output."""
    onnx_models.save(onnx_models.fixed_rows(), models / "pairs/1/model.onnx")
    rows: list[dict[str, object]] = [{"a": at, "b": 1.5, "c": 2.0} for at in range(301)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
    rows[7]["b"] = "word"
    write_csv("rows.csv", [[*row.values()] for row in rows], "abc")
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind, failed in ("csv", [7]), ("jsonl", [7]), ("parquet", []):
        result = score(f"rows.{kind}", "pairs", "scored.jsonl", "--columns", "a,b,c")
        assert result.exit_code == bool(failed)
        found = [json.loads(line) for line in Path("scored.jsonl").read_text().splitlines()]
        assert [at for at, row in enumerate(found) if row["error"]] == failed
        good = [row["y"] for row in found if not row["error"]]
        assert good == [[2 * at, 3, 4] for at in range(301) if at not in failed]


def test_only_the_named_model_is_loaded(models: Path) -> None:
    """With the models of its steps, if it is a pipeline; a folder may hold many others."""
    write_csv("rows.csv", ROWS.tolist())
    assert score("rows.csv", "one", "scored.csv").exit_code == 0
    profiles = Path("cache/profiles")
    assert len([*profiles.glob("*.json")]) == 1
    steps = {"only": {"model": "mlp", "inputs": {"x": "x"}}}
    (models / "line").mkdir()
    pipeline = {"steps": steps, "outputs": {"y": {"from": "only.y"}}}
    (models / "line/pipeline.yaml").write_text(json.dumps(pipeline))
    result = score("rows.csv", "line", "line.csv", "--columns", "a,b,c,d")
    assert (result.exit_code, result.stderr) == (0, "")
    assert len([*profiles.glob("*.json")]) == 2


def test_a_full_disk_is_reported_with_the_file_that_has_no_room() -> None:
    """And the same command continues later."""
    rows = np.random.default_rng(5).normal(size=(20_000, 4)).round(4)
    write_csv("rows.csv", rows.tolist())
    command = f"{sys.executable} -m cohort score rows.csv --model mlp --out scored.csv"
    full = subprocess.run(
        ["bash", "-c", f"ulimit -f 500; {command}"],
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert full.returncode == 2
    assert re.search(r"scored\.csv\.partial/\S+: File too large", full.stderr), full.stderr
    assert score("rows.csv", "mlp", "scored.csv").exit_code == 0


def test_a_parquet_result_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra, before anything is written."""
    monkeypatch.setattr("cohort.scoring.sources.find_spec", lambda name: None)
    write_csv("rows.csv", ROWS.tolist())
    result = score("rows.csv", "mlp", "scored.parquet")
    assert (result.exit_code, "cohort[score]" in result.stderr) == (2, True)
    assert not list(Path().glob("scored*"))
