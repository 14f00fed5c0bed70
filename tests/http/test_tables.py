"""Tables with gaps, on every API: rows as objects, columns as lists, null for a missing value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from onnx import TensorProto, helper

from tests import onnx_models
from tests.e2e.processes import cohort
from tests.waiting import PATIENCE

HOUSE = ["rooms", "area", "age"]


def columns_model() -> Any:
    """`city` BYTES, `age` FP32, `count` INT64, each [N, 1] → each as it is, NaN of `age` as -1."""
    kinds = {"city": TensorProto.STRING, "age": TensorProto.FLOAT, "count": TensorProto.INT64}
    nodes = [
        helper.make_node("Identity", ["city"], ["same"]),
        helper.make_node(
            "Imputer", ["age"], ["older"], domain="ai.onnx.ml",
            imputed_value_floats=[-1.0], replaced_value_float=float("nan"),
        ),
        helper.make_node("Identity", ["count"], ["counted"]),
    ]  # fmt: skip
    outputs = dict(zip(("same", "older", "counted"), kinds.values(), strict=True))
    graph = helper.make_graph(
        nodes,
        "columns",
        [helper.make_tensor_value_info(name, kind, ["N", 1]) for name, kind in kinds.items()],
        [helper.make_tensor_value_info(name, kind, ["N", 1]) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with columns as inputs, some of them with a value for a gap, and with one block."""
    folder = tmp_path_factory.mktemp("tables")
    models = folder / "models"
    block = onnx_models.describe(
        onnx_models.identity("INT64", ("N", 3)),
        {"feature_names": json.dumps(HOUSE), "cohort.missing": json.dumps({"x": -7})},
    )
    for name, model in {
        "strict": columns_model(),
        "lenient": columns_model(),
        "house": block,
        "plain": onnx_models.identity("INT64", ("N", 3)),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    Path(models / "lenient/config.yaml").write_text(
        "inputs: {city: {missing: '?'}, age: {missing: 40}, count: {missing: 0}}\n"
    )
    with (
        cohort(models, folder) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as one,
    ):
        yield one


ROWS: list[dict[str, Any]] = [
    {"count": 3.0, "city": "Bern", "age": None},
    {"age": 2.5, "count": 1, "city": "Ulm"},
]
COLUMNS: dict[str, list[Any]] = {"city": ["Bern", "Ulm"], "age": [None, 2.5], "count": [3.0, 1]}
FOUND: dict[str, list[Any]] = {"same": ["Bern", "Ulm"], "older": [-1.0, 2.5], "counted": [3, 1]}


def flat(outputs: Any) -> Any:
    return {name: [one for row in rows for one in row] for name, rows in outputs.items()}


@pytest.mark.parametrize("body", [{"rows": ROWS}, {"inputs": COLUMNS}])
@pytest.mark.parametrize("path", ["/predict", "/models/strict/predict"])
def test_rows_and_columns_are_answered_by_the_simple_api(
    client: httpx.Client, path: str, body: Any
) -> None:
    """null stands for NaN, columns may have any order, 3.0 is 3, and bodies may be long."""
    named = {"model": "strict", "id": "a"} if path == "/predict" else {"id": "a"}
    for padding in (0, 5000):
        sent = json.dumps({**body, **named}) + " " * padding
        answer = client.post(path, content=sent, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert flat(answer.json()["outputs"]) == FOUND
        assert answer.json()["id"] == "a"


def test_many_rows_are_answered(client: httpx.Client) -> None:
    """They are answered like few rows; such a body is read in pieces."""
    answer = client.post("/models/strict/predict", json={"rows": ROWS * 4000})
    assert flat(answer.json()["outputs"]) == {name: one * 4000 for name, one in FOUND.items()}


def test_other_apis_take_the_same_values(client: httpx.Client) -> None:
    """TensorFlow Serving's, the Open Inference Protocol's and MLflow's."""
    v1 = client.post("/v1/models/strict:predict", json={"instances": ROWS}).json()["predictions"]
    assert {name: [row[name][0] for row in v1] for name in FOUND} == FOUND
    v1 = client.post("/v1/models/strict:predict", json={"inputs": COLUMNS}).json()["outputs"]
    assert flat(v1) == FOUND
    kinds = {"city": "BYTES", "age": "FP32", "count": "INT64"}
    for shape in ([2], [2, 1]):
        tensors = [
            {"name": name, "datatype": kinds[name], "shape": shape, "data": data}
            for name, data in COLUMNS.items()
        ]
        v2 = client.post("/v2/models/strict/infer", json={"inputs": tensors}).json()["outputs"]
        assert {one["name"]: one["data"] for one in v2} == FOUND
    text = json.dumps([{**row, "age": float("nan")} if row["age"] is None else row for row in ROWS])
    for body in (
        json.dumps({"dataframe_records": ROWS}),
        '{"dataframe_records": ' + text + "}",  # as Python writes NaN
        json.dumps(
            {
                "dataframe_split": {
                    "columns": [*COLUMNS],
                    "data": [list(row) for row in zip(*COLUMNS.values(), strict=True)],
                }
            }
        ),
    ):
        answer = client.post(
            "/invocations?model=strict", content=body, headers={"content-type": "application/json"}
        )
        found = answer.json()["predictions"]
        assert {name: [row[name][0] for row in found] for name in FOUND} == FOUND
    answer = client.post(
        "/invocations?model=strict",
        content=b"age,count,city\n,3.0,Bern\n2.5,1,Ulm\n",
        headers={"content-type": "text/csv"},
    )
    found = answer.json()["predictions"]
    assert {name: [row[name][0] for row in found] for name in FOUND} == FOUND


def test_config_says_what_stands_for_a_missing_value(client: httpx.Client) -> None:
    """This holds for text, whole numbers, and floats instead of NaN, in JSON and CSV."""
    rows = [{"city": None, "age": None, "count": None}]
    answer = client.post("/models/lenient/predict", json={"rows": rows})
    found: dict[str, list[Any]] = {"same": ["?"], "older": [40.0], "counted": [0]}
    assert flat(answer.json()["outputs"]) == found
    csv = client.post(
        "/invocations?model=lenient",
        content=b"city,age,count\n,,\n",
        headers={"content-type": "text/csv"},
    )
    assert {name: one[0] for name, one in csv.json()["predictions"][0].items()} == {
        name: one[0] for name, one in found.items()
    }


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{**ROWS[0], "count": None}], "input 'count' must be INT64, got null at [0][0]: send a"),
        ([{**ROWS[0], "count": None}], "or give the model a float input, where it is NaN"),
        ([{**ROWS[0], "city": None}], "under inputs.city.missing"),
        ([{**ROWS[0], "count": 3.5}], "must be INT64, got 3.5"),
        ([{**ROWS[0], "town": 1}], "column 'town' not found"),
        ([{"city": "Bern", "age": 1}], "column 'count' is missing"),
        ([ROWS[0], {"city": "Bern", "age": 1}], "the row at [1] has no column 'count'"),
        ([ROWS[0], 7], "the row at [1] must be an object, got 7"),
        ([[1, 2, 3]], "must be an object with a value for each column, got a list at [0]"),
        ([], "'rows' must have at least one row"),
        ({"city": "Bern"}, "'rows' must be a list of rows, got an object"),
    ],
)
def test_rows_that_do_not_fit_are_refused(client: httpx.Client, rows: Any, says: str) -> None:
    """The error names the column and the row, and states what to do."""
    answer = client.post("/models/strict/predict", json={"rows": rows})
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "key"),
    [("/models/house/predict", "rows"), ("/invocations?model=house", "dataframe_records")],
)
def test_objects_with_unknown_names_are_not_read_in_their_order(
    client: httpx.Client, path: str, key: str
) -> None:
    """A model that names its features refuses rows with other names, which might mean others."""
    row = {"a": 1, "b": 2, "c": 3}
    answer = client.post(path, json={key: [row]})
    assert answer.status_code == 400, answer.text
    assert "column 'a' not found" in answer.json()["error"]


@pytest.mark.parametrize("padding", [0, 5000])
def test_the_word_nan_is_a_missing_value_on_every_api(client: httpx.Client, padding: int) -> None:
    """It is one also in a small body, which would be answered together with others."""
    tensor = '{"name": "x", "datatype": "INT64", "shape": [1, 3], "data": [1, NaN, 3]}'
    for path, body, key in (
        ("/models/house/predict", '{"input": [[1, NaN, 3]]}', "prediction"),
        ("/models/house/predict", '{"inputs": {"x": [[1, null, 3]]}}', "outputs"),
        ("/v1/models/house:predict", '{"instances": [[1, NaN, 3]]}', "predictions"),
        ("/v2/models/house/infer", f'{{"inputs": [{tensor}]}}', "outputs"),
    ):
        answer = client.post(path, content=body + " " * padding, headers={"accept": "*/*"})
        assert answer.status_code == 200, answer.text
        assert "[1,-7,3]" in json.dumps(answer.json()[key], separators=(",", ":"))


def test_rows_stand_alone(client: httpx.Client) -> None:
    """A body has them or inputs."""
    for key, said in (("inputs", "'rows' or 'inputs'"), ("input", "'rows' or 'input'")):
        answer = client.post("/models/strict/predict", json={"rows": ROWS, key: {}})
        assert answer.status_code == 400
        assert said in answer.json()["error"]


def test_columns_of_a_block_go_by_the_names_in_its_file(client: httpx.Client) -> None:
    """Columns may have any order, as rows and as lists; the file also defines the missing value."""
    rows = [{"age": 3, "rooms": 1, "area": 2}, {"rooms": 4, "area": None, "age": 6}]
    columns = {"area": [2, None], "rooms": [1, 4], "age": [3, 6]}
    wanted = [[1, 2, 3], [4, -7, 6]]
    simple = "/models/house/predict"
    for path, body, key in (
        (simple, {"rows": rows}, "outputs"),
        (simple, {"inputs": columns}, "outputs"),
        (simple, {"inputs": {"x": [[1, 2, 3], [4, None, 6]]}}, "outputs"),
        (simple, {"input": [[1, 2, 3], [4, None, 6]]}, "prediction"),
        ("/v1/models/house:predict", {"instances": [[1, 2, 3], [4, None, 6]]}, "predictions"),
        ("/v1/models/house:predict", {"instances": rows}, "predictions"),
        ("/v1/models/house:predict", {"inputs": columns}, "outputs"),
        ("/invocations?model=house", {"dataframe_records": rows}, "predictions"),
    ):
        for padding in (0, 5000):
            answer = client.post(path, content=json.dumps(body) + " " * padding)
            assert answer.status_code == 200, answer.text
        found = answer.json()[key]
        assert (found["y"] if isinstance(found, dict) else found) == wanted
    csv = client.post(
        "/invocations?model=house",
        content=b"age,area,rooms\n3,2,1\n6,,4\n",
        headers={"content-type": "text/csv"},
    )
    assert csv.json()["predictions"] == wanted


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"y": [[1, 2, 3]]}, "input 'y' not found"),
        ({"rooms": [1], "area": [2]}, "column 'age' is missing"),
        ({"rooms": [1], "area": [2], "ages": [3]}, "column 'ages' not found; did you mean 'age'"),
        ({"rooms": [1], "area": [2, 3], "age": [3]}, "'rooms' has 1 values, 'area' has 2"),
        ({"rooms": [1], "area": [[2]], "age": [3]}, "column 'area' must be a list of values"),
        (
            {"rooms": [1], "area": [2], "age": ["a"]},
            "'age' must be INT64, got the string 'a' at [0]",
        ),
    ],
)
def test_columns_of_a_block_that_do_not_fit_are_refused(
    client: httpx.Client, inputs: Any, says: str
) -> None:
    """The error names the column."""
    answer = client.post("/models/house/predict", json={"inputs": inputs})
    assert answer.status_code == 400
    assert says in answer.json()["error"]


def test_a_block_without_names_takes_columns_in_their_order(client: httpx.Client) -> None:
    """Rows as objects are in the order of the first."""
    rows = [{"a": 1, "b": 2, "c": 3}, {"c": 6, "b": 5, "a": 4}]
    answer = client.post("/models/plain/predict", json={"rows": rows})
    assert answer.json()["outputs"]["y"] == [[1, 2, 3], [4, 5, 6]]


def test_a_block_with_names_takes_columns_in_the_order_of_their_numbers(
    client: httpx.Client,
) -> None:
    """Frames of pandas without names have numbers as names."""
    answer = client.post("/models/house/predict", json={"rows": [{"0": 1, "1": 2, "2": 3}]})
    assert answer.json()["outputs"]["y"] == [[1, 2, 3]]
