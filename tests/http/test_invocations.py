"""`/invocations` and `/ping`, as clients of MLflow and SageMaker use them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE

ROWS = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
NAMES = ["a", "b", "c", "d"]
RECORDS = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
SPLIT = {"index": [0, 1], "columns": NAMES, "data": ROWS}

COLUMNS = ["name", "age"]
PEOPLE: list[list[Any]] = [["Ann", 41], ["Žofie", 7]]
ANSWERED = [{"same": "Ann", "older": 42}, {"same": "Žofie", "older": 8}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A process with a default model of four features, and one with an input for each column."""
    folder = tmp_path_factory.mktemp("invocations")
    for name, model in {
        "features": onnx_models.identity("FP32", ("N", 4)),
        "people": onnx_models.people(["N", 1]),
        "flat": onnx_models.people(["N"]),
        "whole": onnx_models.identity("INT64", ("N", 2)),
        "weighted": onnx_models.with_defaults(),
        "words": onnx_models.identity("BYTES", ("N",)),
    }.items():
        onnx_models.save(model, folder / "models" / name / "1/model.onnx")
    with cohort(folder / "models", folder, default_model="features", max_body_mb=8) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Cohort) -> Iterator[httpx.Client]:
    """One client for all tests, its connections kept between them."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def ask(client: httpx.Client, body: Any, model: str = "") -> httpx.Response:
    """Invoke the default model, or `model`, with JSON."""
    return client.post(f"/invocations{model and '?model='}{model}", json=body)


def ask_csv(client: httpx.Client, text: str, model: str = "", more: str = "") -> httpx.Response:
    """Invoke the default model, or `model`, with CSV."""
    return client.post(
        f"/invocations{model and '?model='}{model}",
        content=text.encode(),
        headers={"content-type": f"text/csv{more}"},
    )


def predictions(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"predictions"}
    return answer.json()["predictions"]


def flat(rows: Any) -> Any:
    """Rows without the lists around their values."""
    return [{name: np.ravel(one).item() for name, one in row.items()} for row in rows]


def refusal(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    said: str = answer.json()["error"]
    return said


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": SPLIT},
        {"dataframe_split": {"data": ROWS}},
        {"dataframe_records": RECORDS},
        {"inputs": ROWS},
        {"inputs": {"x": ROWS}},
        {"instances": ROWS},
        {"instances": [{"x": row} for row in ROWS]},
        {"dataframe_split": SPLIT, "params": {"user": "ann"}},
        ROWS,
    ],
)
def test_each_form_of_mlflow_reaches_a_model_of_features(client: httpx.Client, body: Any) -> None:
    """Columns are features in their order; a bare list is what SageMaker's clients send."""
    assert predictions(ask(client, body)) == ROWS


@pytest.mark.parametrize("model", ["people", "flat"])
@pytest.mark.parametrize("order", [1, -1])
def test_columns_are_the_inputs_of_their_names(
    client: httpx.Client, model: str, order: int
) -> None:
    """They may have any order, and shape [N, 1] or [N]; several outputs are answered row by row."""
    names = COLUMNS[::order]
    data = [row[::order] for row in PEOPLE]
    for body in (
        {"dataframe_split": {"columns": names, "data": data}},
        {"dataframe_records": [dict(zip(names, row, strict=True)) for row in data]},
    ):
        found = predictions(ask(client, body, model))
        assert [
            {key: np.ravel(one).item() for key, one in row.items()} for row in found
        ] == ANSWERED


def test_a_column_of_lists_is_an_input_of_rows(client: httpx.Client) -> None:
    """The frame has an array in each cell."""
    split = {"columns": ["x"], "data": [[row] for row in ROWS]}
    assert predictions(ask(client, {"dataframe_split": split})) == ROWS


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("1,2,3,4\n5,6,7,8\n", ""),
        ("1.0,2e0,+3, 4\r\n5,6,7,8", ""),
        ("a,b,c,d\n1,2,3,4\n\n5,6,7,8\n", ""),
        ("\ufeffa,b,c,d\n1,2,3,4\n5,6,7,8\n", "; charset=utf-8"),
        ("9,9,9,9\n1,2,3,4\n5,6,7,8\n", "; header=present"),
        ('1,"2",3,4\n5,6,7,8\n', ";header=absent"),
    ],
)
def test_csv_has_names_or_none(client: httpx.Client, text: str, more: str) -> None:
    """pandas writes names, and SageMaker's own algorithms send none."""
    assert predictions(ask_csv(client, text, more=more)) == ROWS


@pytest.mark.parametrize("model", ["people", "flat"])
def test_csv_reaches_inputs_by_name_or_in_order(client: httpx.Client, model: str) -> None:
    """Named columns may have any order; columns without names have the model's."""
    for text in ('age,name\n41,Ann\n7,"Žofie"\n', "Ann,41\nŽofie,7\n"):
        found = predictions(ask_csv(client, text, model))
        assert [
            {key: np.ravel(one).item() for key, one in row.items()} for row in found
        ] == ANSWERED


def test_a_large_table_is_read_beside_the_loop(client: httpx.Client) -> None:
    """Each form gives the same numbers."""
    rows = np.arange(100_000, dtype=float).reshape(-1, 4)
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist())
    named = [dict(zip(NAMES, row, strict=True)) for row in rows.tolist()]
    for answer in (
        ask(client, {"dataframe_split": {"columns": NAMES, "data": rows.tolist()}}),
        ask(client, {"dataframe_records": named}),
        ask_csv(client, text),
    ):
        assert np.array_equal(predictions(answer), rows)


def test_csv_is_not_read_on_after_its_time(client: httpx.Client) -> None:
    """Eight million empty lines stop being read when the caller's time ends."""
    answer = client.post(
        "/invocations?timeout_ms=1",
        content=b"\n" * 8_000_000,
        headers={"content-type": "text/csv"},
    )
    assert refusal(answer, 504) == "no response within 1 ms"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "exactly one of 'dataframe_split', 'dataframe_records', 'inputs', 'instances'"),
        ({"inputs": ROWS, "instances": ROWS}, "exactly one of"),
        ({"inputs": ROWS, "input": 1}, "unknown key 'input'"),
        ({"inputs": ROWS, "params": 1}, "'params' must be an object"),
        (7, "must be a JSON object, got 7"),
        ({"dataframe_split": ROWS}, "'dataframe_split' must be an object"),
        ({"dataframe_split": {"columns": NAMES}}, "'data' must be a list of rows, got null"),
        ({"dataframe_split": {"columns": 7, "data": ROWS}}, "'columns' must be a list of names"),
        ({"dataframe_split": {"columns": NAMES, "data": []}}, "at least one row"),
        ({"dataframe_split": {"columns": NAMES, "data": [[1, 2, 3]]}}, "must have shape [N, 4]"),
        ({"dataframe_split": {"data": [7]}}, "the row at [0] must be a list, got 7"),
        ({"dataframe_records": []}, "at least one row"),
        ({"dataframe_records": [[1]]}, "each row must be an object"),
        ({"dataframe_records": [RECORDS[0], {"a": 1}]}, "the row at [1] has no column 'b'"),
        (
            {"dataframe_records": [RECORDS[0], {**RECORDS[0], "e": None}]},
            "the row at [1] has a column 'e', which the first row does not have",
        ),
        ({"dataframe_records": [{**RECORDS[0], "a": "1"}]}, "must be FP32, got the string"),
        ({"instances": []}, "'instances' must be a list of rows, got an empty list"),
    ],
)
def test_a_body_that_cannot_be_read_is_told(client: httpx.Client, body: Any, says: str) -> None:
    """The error names the key, the row or the shape."""
    assert says in refusal(ask(client, body))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            {"columns": ["name", "ago"], "data": [["Ann", 41]]},
            "'ago' not found; did you mean 'age'?",
        ),
        ({"columns": ["name"], "data": [["Ann"]]}, "column 'age' is missing"),
        (
            {"columns": ["name", "age", "age"], "data": [["Ann", 1, 2]]},
            "the column 'age' is listed twice",
        ),
        ({"columns": COLUMNS, "data": [["Ann", 41], ["Žofie"]]}, "[1] has 1 cells, not 2"),
        ({"columns": COLUMNS, "data": [["Ann", 41], 7]}, "[1] must be a list, got 7"),
        ({"columns": COLUMNS, "data": [["Ann", 4.5]]}, "'age' must be INT64, got 4.5"),
        ({"data": [["Ann", 41, 0]]}, "has 3 columns, but the model has 2 inputs"),
    ],
)
def test_a_table_that_does_not_fit_is_told(client: httpx.Client, body: Any, says: str) -> None:
    """The error names the column or the row."""
    assert says in refusal(ask(client, {"dataframe_split": body}, "people"))


@pytest.mark.parametrize(
    ("text", "model", "says"),
    [
        ("", "", "the CSV has no rows"),
        ("a,b,c,d\n", "", "column names, but no rows"),
        ("1,2,3\n", "", "must have shape [N, 4], got [1, 3]"),
        ("1,2,3,4\n1,2,3\n", "", "the row at [1] has 3 cells, not 4"),
        ("1,2,3,4\n1,x,3,4\n", "", "must be FP32, got 'x' at row 1, column 1"),
        ("1,2,3,4\n1,1_0,3,4\n", "", "must be FP32, got '1_0' at row 1, column 1"),
        ("1,2,3,1e39\n", "", "which is out of range"),
        ("1,2.5\n", "whole", "must be INT64, got '2.5' at row 0, column 1"),
        ("1,1e300\n", "whole", "must be INT64, got '1e300' at row 0, column 1"),
        ("1,\n", "whole", "must be INT64, got an empty cell at row 0, column 1: send a value"),
        ("Ann,\n", "people", "must be INT64, got an empty cell at row 0, column 1"),
        (",41\n", "people", "must be BYTES, got an empty cell at row 0, column 0"),
        ("1,99999999999999999999\n", "whole", "out of range"),
        ("1," + "9" * 200_000, "whole", "field larger than field limit"),
        ("1," + "9" * 1_100_000, "whole", "a line of more than 1048576 characters"),
    ],
)
def test_csv_that_does_not_fit_is_told(
    client: httpx.Client, text: str, model: str, says: str
) -> None:
    """The error names the row and the column."""
    assert says in refusal(ask_csv(client, text, model))


def test_an_empty_cell_is_no_number(client: httpx.Client) -> None:
    """A model of trees accepts NaN, which JSON cannot express."""
    answer = client.post(
        "/invocations",
        content=b"1,,3,4\n",
        headers={"content-type": "text/csv", "accept": "application/x-npy"},
    )
    loaded = np.load(io.BytesIO(answer.content))
    assert np.array_equal(loaded, [[1, np.nan, 3, 4]], equal_nan=True)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": {"x": [[1, 2, 3]], "factor": 3}},
        {"inputs": {"x": [[1, 2, 3]]}},
        {"instances": [{"x": [1, 2, 3]}]},
    ],
)
def test_what_a_model_has_a_default_for_may_be_set(client: httpx.Client, body: Any) -> None:
    """Its name sets it, as on V1."""
    factor = 3 if "factor" in str(body) else 2
    assert predictions(ask(client, body, "weighted")) == [[factor, 2 * factor, 3 * factor]]


def test_files_are_taken_as_by_predict(client: httpx.Client) -> None:
    """It accepts an array as SageMaker's clients send it, a form, and one element of bytes."""
    file = io.BytesIO()
    np.save(file, np.array(ROWS, "f4"))
    headers = {"content-type": "application/x-npy"}
    body = file.getvalue()
    assert predictions(client.post("/invocations", content=body, headers=headers)) == ROWS
    assert predictions(client.post("/invocations", files={"x": ("x.npy", body)})) == ROWS
    headers = {"content-type": "image/png"}
    answer = client.post("/invocations?model=words", content=b"a", headers=headers)
    assert predictions(answer) == ["a"]


def test_packed_bodies_are_taken(client: httpx.Client) -> None:
    """This endpoint unpacks them as all others do."""
    body = gzip.compress(json.dumps({"inputs": ROWS}).encode())
    answer = client.post("/invocations", content=body, headers={"content-encoding": "gzip"})
    assert predictions(answer) == ROWS


def test_ping_says_whether_it_is_ready(client: httpx.Client) -> None:
    """Its status reports it, for SageMaker; a balancer may use HEAD."""
    assert client.get("/ping").status_code == 200
    assert client.head("/ping").status_code == 200


def test_refusals_are_counted(server: Cohort, client: httpx.Client) -> None:
    """They count for the model that would have answered."""
    labels = {"model": "features", "code": "InvalidInput"}
    before = Scrape(server.url).value("model_inference_total", **labels)
    ask(client, {})
    ask(client, {"inputs": [[1]]})
    assert Scrape(server.url).value("model_inference_total", **labels) == before + 2
