"""Words, dates and plain numbers for models of numbers, as config or metadata say, on every API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cohort.errors import InvalidInput
from cohort.processing.dates import DateStep
from cohort.processing.steps import StepContext
from cohort.repository import InputConfig
from cohort.tensors import TensorSpec
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port, run_command
from tests.rpc.client import connected
from tests.waiting import PATIENCE

GAP = -100.0
"""The models' output for NaN."""


def shown(columns: int, datatype: int = TensorProto.FLOAT, **properties: Any) -> onnx.ModelProto:
    """`x` [N, columns] → `y`: the same, and GAP for NaN."""
    nodes = [
        helper.make_node("IsNaN", ["x"], ["gap"]),
        helper.make_node("Where", ["gap", "no", "x"], ["y"]),
    ]
    no = helper.make_tensor("no", datatype, [1], [GAP])
    if datatype == TensorProto.INT64:
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "shown",
            [helper.make_tensor_value_info("x", datatype, ["N", columns])],
            [helper.make_tensor_value_info("y", datatype, ["N", columns])],
            [no] if datatype == TensorProto.FLOAT else [],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    helper.set_model_props(model, {key: json.dumps(value) for key, value in properties.items()})
    return model


def added() -> onnx.ModelProto:
    """`age` FP32 [N] and `city` FP32 [N, 1] → `y` FP32 [N]: the first, and ten times the second."""
    nodes = [
        helper.make_node("Reshape", ["city", "flat"], ["codes"]),
        helper.make_node("Mul", ["codes", "ten"], ["tens"]),
        helper.make_node("Add", ["age", "tens"], ["y"]),
    ]
    shapes: dict[str, list[str | int]] = {"age": ["N"], "city": ["N", 1], "y": ["N"]}
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    weights = [
        helper.make_tensor("flat", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("ten", TensorProto.FLOAT, [1], [10.0]),
    ]
    graph = helper.make_graph(nodes, "added", values[:2], values[2:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CATEGORIES: Any = {"cohort.categories": {"city": ["Bern", "Basel", "Ulm"], "size": [3, 5]}}
COLUMNS: Any = {"feature_names": ["age", "city", "size"]}

CONFIGS: Mapping[str, tuple[onnx.ModelProto, str]] = {
    "told": (shown(3, **CATEGORIES, **COLUMNS), ""),
    "other": (
        shown(3, **CATEGORIES, **COLUMNS),
        "inputs: {age: {missing: 40}, city: {unknown: Ulm, missing: Bern}}",
    ),
    "listed": (
        shown(3),
        "inputs:\n"
        "  x: {columns: [age, city, size]}\n"
        "  city: {categories: cities.txt}\n"
        "  size: {categories: [3, 5], unknown: -1}\n",
    ),
    "apart": (added(), "inputs: {city: {categories: [Bern, Ulm]}}"),
    "echo": (
        onnx_models.identity("FP32", ("N", 2)),
        "inputs: {x: {columns: [age, colour]}, colour: {categories: [red, green]}}",
    ),
    "whole": (shown(1, TensorProto.INT64), "inputs: {x: {categories: [red, green]}}"),
    "hot": (shown(3), "inputs: {x: {categories: [red, green, blue], one_hot: true}}"),
    "dummies": (
        shown(3, feature_names=["age", "city_Basel", "city_Ulm"]),
        "inputs: {city: {categories: [Bern, Basel, Ulm], one_hot: true, unknown: nan}}",
    ),
    "scaled": (shown(2), "inputs: {x: {standardise: {mean: [1, 2], std: [2, 4]}}}"),
    "dated": (
        shown(4, feature_names=["age", "day_year", "day_month", "day_weekday"]),
        "inputs:\n"
        "  age: {standardise: {mean: 40, std: 10}}\n"
        "  day: {date: [year, month, weekday]}\n",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of these models."""
    made = tmp_path_factory.mktemp("columns")
    for name, (model, config) in CONFIGS.items():
        onnx_models.save(model, made / f"models/{name}/1/model.onnx")
        if config:
            (made / f"models/{name}/config.yaml").write_text(config)
    (made / "models/listed/1/cities.txt").write_text("Bern\nBasel\nUlm\n")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    """It serves them."""
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def post(server: Cohort, path: str, body: Any, **headers: str) -> Any:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = httpx.post(server.url + path, content=content, headers=headers, timeout=PATIENCE)
    return answer.json()


def predicted(server: Cohort, model: str, rows: Any) -> Any:
    answer = post(server, f"/models/{model}/predict", {"rows": rows})
    return answer.get("outputs", {}).get("y") or answer["error"]


ROWS: Any = [{"city": "Ulm", "size": 5, "age": 30}, {"age": None, "city": None, "size": 3}]
WANTED = [[30, 2, 1], [GAP, GAP, 0]]


def v2(**data: list[Any]) -> dict[str, Any]:
    datatypes = {"age": "FP32", "city": "BYTES", "size": "FP64"}
    return {
        "inputs": [
            {"name": name, "datatype": datatypes[name], "shape": [len(values)], "data": values}
            for name, values in data.items()
        ]
    }


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/models/told/predict", {"rows": ROWS}, "outputs"),
        (
            "/models/told/predict",
            {"inputs": {"city": ["Ulm", None], "age": [30, None], "size": [5, 3]}},
            "outputs",
        ),
        ("/v1/models/told:predict", {"instances": ROWS}, "predictions"),
        (
            "/v2/models/told/infer",
            v2(age=[30, None], city=["Ulm", None], size=[5, 3]),
            "data",
        ),
        ("/invocations?model=told", {"dataframe_records": ROWS}, "predictions"),
        (
            "/invocations?model=told",
            {
                "dataframe_split": {
                    "columns": ["size", "age", "city"],
                    "data": [[5, 30, "Ulm"], [3, None, None]],
                }
            },
            "predictions",
        ),
    ],
)
def test_words_come_by_the_names_of_columns(
    server: Cohort, path: str, body: Any, answer: str
) -> None:
    """The model gets the codes that its metadata defines, on every API in JSON."""
    found = post(server, path, body)
    if answer == "data":
        rows = np.reshape(found["outputs"][0]["data"], (-1, 3)).tolist()
    else:
        rows = found[answer]["y"] if answer == "outputs" else found[answer]
    assert rows == WANTED


@pytest.mark.parametrize(
    "text",
    ["size,city,age\n5,Ulm,30\n3,,\n", "30,Ulm,5\n,,3\n"],
    ids=["with names", "in the model's order"],
)
def test_words_come_as_csv(server: Cohort, text: str) -> None:
    """Names may be in any order, or absent in the model's order; an empty cell is a gap."""
    found = post(server, "/invocations?model=told", text, **{"content-type": "text/csv"})
    assert found["predictions"] == WANTED


def test_inputs_that_are_columns_stay_in_the_models_order(server: Cohort) -> None:
    """A CSV without names gives the second column to the input that is made of words."""
    found = post(
        server, "/invocations?model=apart", "3,Ulm\n4,Bern", **{"content-type": "text/csv"}
    )
    assert found["predictions"] == [13, 4]


async def test_words_come_over_grpc(server: Cohort) -> None:
    """They are BYTES [N], as the metadata states."""
    rows = {
        "age": np.array([30, 31], np.float32),
        "city": np.array(["Ulm", "Bern"], np.object_),
        "size": np.array([5, 3], np.float64),
    }
    async with connected(server.grpc) as client:
        found = await client.infer("told", rows)
    assert found["y"].tolist() == [[30, 2, 1], [31, 0, 0]]
    said = httpx.get(f"{server.url}/v2/models/told", timeout=PATIENCE).json()["inputs"]
    assert [(one["name"], one["datatype"]) for one in said] == [
        ("age", "FP32"),
        ("city", "BYTES"),
        ("size", "FP64"),
    ]


def test_what_is_no_category_is_the_callers_fault(server: Cohort) -> None:
    """The answer names the column, the row, the word, and some that are known."""
    rows = [*ROWS, {"city": "Base", "size": 3, "age": 1}]
    said = predicted(server, "told", rows)
    assert said == (
        "input 'city' row 2: 'Base' is not one of its 3 categories: 'Bern', 'Basel', 'Ulm'; did "
        "you mean 'Basel'?"
    )
    assert "input 'size' row 0: 4 is not one of its 2" in predicted(
        server, "told", [{"city": "Ulm", "size": 4, "age": 1}]
    )


@pytest.mark.parametrize("gap", [{"age": None, "colour": "red"}, {"age": 1, "colour": None}])
def test_nan_that_comes_of_a_gap_is_the_callers_fault(server: Cohort, gap: dict[str, Any]) -> None:
    """In JSON and CSV, the model returns NaN for a missing number and a missing word."""
    said = post(server, "/models/echo/predict", {"rows": [gap]})
    assert said["code"] == "InvalidInput"
    assert said["error"].endswith("missing values in the request's inputs may be the cause")
    text = "age,colour\n" + ",".join("" if cell is None else str(cell) for cell in gap.values())
    csv = post(server, "/invocations?model=echo", text, **{"Content-Type": "text/csv"})
    assert csv == said


def test_a_config_says_what_stands_for_gaps_and_unknown_words(server: Cohort) -> None:
    """The config sets both for a column whose categories the metadata has."""
    rows = [{"age": None, "city": None, "size": 3}, {"age": 1, "city": "Zug", "size": 5}]
    assert predicted(server, "other", rows) == [[40, 0, 0], [1, 2, 1]]


def test_a_config_names_columns_and_their_categories(server: Cohort) -> None:
    """The model has no metadata about them; a file has one category a line."""
    rows = [{"size": 9, "city": "Basel", "age": 4}]
    assert predicted(server, "listed", rows) == [[4, 1, -1]]
    assert predicted(server, "whole", [{"x": "green"}, {"x": "red"}]) == [[1], [0]]
    assert "must be BYTES, got null" in predicted(server, "whole", [{"x": None}])


def test_a_word_becomes_ones_and_zeros(server: Cohort) -> None:
    """They are one input, or columns as from pandas' get_dummies, the first of which may lack."""
    assert predicted(server, "hot", [{"x": "blue"}, {"x": None}]) == [[0, 0, 1], [0, 0, 0]]
    rows = [{"age": 1, "city": word} for word in ("Bern", "Ulm", "Zug")]
    assert predicted(server, "dummies", rows) == [[1, 0, 0], [1, 0, 1], [1, 0, 0]]


def test_numbers_and_dates_come_as_people_have_them(server: Cohort) -> None:
    """Numbers are standardised and dates are divided; an invalid date is the caller's mistake."""
    scaled = post(server, "/models/scaled/predict", {"input": [[3, 4]]})
    assert scaled["prediction"] == [[1, 0.5]]
    rows = [{"age": 50, "day": "2026-02-01"}, {"age": None, "day": "2026-03-02T23:30:00+01:00"}]
    assert predicted(server, "dated", rows) == [[1, 2026, 2, 6], [GAP, 2026, 3, 0]]
    assert predicted(server, "dated", [{"age": 1, "day": "1.2.2026"}]) == (
        "input 'day' row 0: '1.2.2026' is not a date such as 2026-01-31 or 2026-01-31T09:30"
    )


def test_long_requests_get_what_short_ones_get(server: Cohort) -> None:
    """Their rows are prepared on a thread."""
    rows = [{"age": n, "city": ["Bern", "Ulm"][n % 2], "size": 3 + n % 2 * 2} for n in range(9000)]
    assert predicted(server, "told", rows) == [[n, n % 2 * 2, n % 2] for n in range(9000)]


def test_codes_are_numbers_of_the_models_datatype(tmp_path: Path) -> None:
    """Too many categories, or a code of -1, are refused if the datatype cannot hold them."""
    for datatype, config, said in (
        ("UINT8", f"categories: {[*range(300)]}", "300 categories, but the model expects UINT8"),
        ("UINT8", "categories: [1, 2], unknown: -1", "unknown is -1, but the model expects UINT8"),
        ("FP16", f"categories: {[*range(2050)]}", "2050 categories, but the model expects FP16"),
        ("FP16", f"categories: {[*range(2051)]}", "2051 categories, but the model expects FP16"),
        (
            "FP16",
            "categories: [1, 2], unknown: 70000",
            "unknown is 70000, but the model expects FP16",
        ),
        ("FP16", f"categories: {[*range(2049)]}, unknown: 0.1, missing: nan", "No problems"),
    ):
        model = onnx_models.identity(datatype, ("N", 1))
        onnx_models.save(model, tmp_path / "models/small/1/model.onnx")
        (tmp_path / "models/small/config.yaml").write_text(f"inputs: {{x: {{{config}}}}}\n")
        found = run_command("check", "--models", str(tmp_path / "models"), cwd=tmp_path)
        assert said in " ".join((found.stdout + found.stderr).split())


@pytest.mark.parametrize(
    ("datatype", "day", "number"),
    [("UINT8", "2026-01-31", 20484), ("UINT16", "1969-12-31", -1), ("FP16", "2026-02-01", 20485)],
)
def test_a_date_that_the_datatype_does_not_have_is_refused(
    datatype: str, day: str, number: int
) -> None:
    """It would be another date, of a neighbouring or a wrapped number."""
    spec = TensorSpec("day", datatype, ("N", 2))
    config = InputConfig(date=("day", "days"))
    step = DateStep(StepContext("day", config, {"day": spec}, Path()))
    good = step.prepare(np.array(["1970-01-05"], np.object_), lambda: None)["day"]
    assert good.tolist() == [[5, 4]]
    with pytest.raises(InvalidInput, match=f"'day' row 1: '{day}' has days {number}, which"):
        step.prepare(np.array(["1970-01-05", day], np.object_), lambda: None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("city: {categories: [Bern, Bern]}", "inputs.city: categories: 'Bern' is listed twice"),
        ("city: {categories: [Bern, 3]}", "must be all words or all numbers"),
        ("city: {categories: none.txt}", "inputs.city.categories: there is no none.txt in the"),
        ("city: {unknown: Zug}", "unknown needs categories"),
        ("city: {categories: [Bern], unknown: Zug}", "unknown: 'Zug' is not one of its categories"),
        ("town: {categories: [a]}", "the model has no such input; available: age, city, size"),
        ("town: {categories: [a, b], one_hot: true}", "neither an input town nor town_b"),
        ("city: {categories: [a, b], one_hot: true}", "each row becomes 2 numbers"),
        ("x: {columns: [a, b]}", "columns: 2 names for an input of 3 columns"),
        ("x: {standardise: {mean: [1], std: 1}}", "1 numbers in mean for 3 columns"),
        ("x: {standardise: {mean: 1, std: 0}}", "std must not be 0"),
        ("city: {date: [year], categories: [a]}", "use either categories or date, not both"),
        ("xx: {image: {}}", "the model has no such input; did you mean 'x'?"),
        ("city: {date: []}", "date: it is empty; name at least one of year"),
        ("town: {date: [year]}", "neither an input town nor town_year"),
    ],
)
def test_check_says_what_does_not_fit(tmp_path: Path, config: str, said: str) -> None:
    """The report has the file, the input, and both numbers that differ."""
    model = shown(3, **COLUMNS)
    onnx_models.save(model, tmp_path / "models/told/1/model.onnx")
    (tmp_path / "models/told/config.yaml").write_text(f"inputs: {{{config}}}\n")
    found = run_command("check", "--models", str(tmp_path / "models"), cwd=tmp_path)
    assert found.returncode == 1
    text = " ".join((found.stdout + found.stderr).split())
    assert "told/config.yaml: inputs." in text
    assert said in text
