"""TensorFlow Serving's REST API, by the examples of its documentation.

https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import onnx_models
from tests.e2e.processes import MODELS, cohort
from tests.e2e.scrape import Scrape

Ask = Mapping[str, Any]


def half_plus(number: float) -> onnx.ModelProto:
    """`x` FP32 [N] → `y` FP32 [N] = x / 2 + number, as TensorFlow Serving's toys."""
    weights = [
        numpy_helper.from_array(np.array(0.5, "f4"), "half"),
        numpy_helper.from_array(np.array(number, "f4"), "number"),
    ]
    return built(
        [
            helper.make_node("Mul", ["x", "half"], ["halved"]),
            helper.make_node("Add", ["halved", "number"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["N"])},
        {"y": (TensorProto.FLOAT, ["N"])},
        weights,
    )


def sensors() -> onnx.ModelProto:
    """The documentation's `tag` BYTES [N], `signal` FP32 [N, 5] and `sensor` FP32 [N, 2, 2].

    → `name` BYTES [N], the tag; `image_bytes` BYTES [N], the same; `peak` FP32 [N], the highest
    signal.
    """
    return built(
        [
            helper.make_node("Identity", ["tag"], ["name"]),
            helper.make_node("Identity", ["tag"], ["image_bytes"]),
            helper.make_node("ReduceMax", ["signal", "last"], ["most"], keepdims=0),
            helper.make_node("ReduceSum", ["sensor", "both"], ["sum"], keepdims=0),
            helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
            helper.make_node("Add", ["most", "nothing"], ["peak"]),
        ],
        {
            "tag": (TensorProto.STRING, ["N"]),
            "signal": (TensorProto.FLOAT, ["N", 5]),
            "sensor": (TensorProto.FLOAT, ["N", 2, 2]),
        },
        {
            "name": (TensorProto.STRING, ["N"]),
            "image_bytes": (TensorProto.STRING, ["N"]),
            "peak": (TensorProto.FLOAT, ["N"]),
        },
        [
            numpy_helper.from_array(np.array([-1], "i8"), "last"),
            numpy_helper.from_array(np.array([1, 2], "i8"), "both"),
            numpy_helper.from_array(np.array(0, "f4"), "zero"),
        ],
    )


def built(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, tuple[int, list[Any]]],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    def tensors(named: Mapping[str, tuple[int, list[Any]]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, *about) for name, about in named.items()]

    graph = helper.make_graph(nodes, "graph", tensors(inputs), tensors(outputs), weights)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", onnx_models.OPSET)],
        ir_version=onnx_models.IR_VERSION,
    )
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Calls a process with toys, one with a name that has dots and a version that is broken."""
    folder = tmp_path_factory.mktemp("v1")
    models = folder / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    for path, model in {
        "half-plus_n.x/1": half_plus(3),
        "half-plus_n.x/2": half_plus(2),
        "sensors/1": sensors(),
        "strings/1": onnx_models.strings(),
        "scalar/1": onnx_models.scalar(),
        "count/1": onnx_models.identity("INT64", []),
        "sequence/1": onnx_models.sequence_and_tensor(),
    }.items():
        onnx_models.save(model, models / path / "model.onnx")
    (models / "half-plus_n.x/config.yaml").write_text("versions: all\n")
    (models / "half-plus_n.x/3").mkdir()
    (models / "half-plus_n.x/3/model.onnx").write_bytes(b"this is no model")
    with cohort(models, folder) as server, httpx.Client(base_url=server.url) as client:
        yield client


TOY = "/v1/models/half-plus_n.x"
ROWS = [
    {"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
    {"tag": "bar", "signal": [3, 4, 1, 2, 4.5], "sensor": [[4, 5], [6, 8]]},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def ask(client: httpx.Client, address: str, body: Ask) -> Any:
    """POST and give the answer's body."""
    answer = client.post(f"{address}:predict", json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()


def refusal(client: httpx.Client, address: str, body: Any) -> tuple[int, str, str]:
    """POST what is refused; status, code and sentence."""
    answer = client.post(f"{address}:predict", json=body)
    told = answer.json()
    assert set(told) == {"error", "code"}
    return answer.status_code, told["code"], told["error"]


def test_the_forms_of_a_single_input(client: httpx.Client) -> None:
    """Rows, with or without names, are answered by rows, and columns by columns."""
    xs = [1.0, 2.0, 5.0]
    by_row, by_column = {"predictions": [2.5, 3.0, 4.5]}, {"outputs": [2.5, 3.0, 4.5]}
    assert ask(client, TOY, {"instances": xs}) == by_row
    assert ask(client, TOY, {"instances": [{"x": x} for x in xs]}) == by_row
    assert ask(client, TOY, {"inputs": xs}) == by_column
    assert ask(client, TOY, {"inputs": {"x": xs}}) == by_column


def test_rows_and_columns_of_several_tensors(client: httpx.Client) -> None:
    """Several outputs come as an object per row, or an object of columns; `_bytes` in base64."""
    image = [{"b64": b64encode(tag).decode()} for tag in (b"foo", b"bar")]
    assert ask(client, "/v1/models/sensors", {"instances": ROWS}) == {
        "predictions": [
            {"name": "foo", "image_bytes": image[0], "peak": 5.0},
            {"name": "bar", "image_bytes": image[1], "peak": 4.5},
        ]
    }
    assert ask(client, "/v1/models/sensors", {"inputs": COLUMNS}) == {
        "outputs": {"name": ["foo", "bar"], "image_bytes": image, "peak": [5.0, 4.5]}
    }


def test_whole_numbers_come_by_row(client: httpx.Client) -> None:
    """The bundled irises answer with a label and probabilities for each row."""
    rows = {"instances": [{"features": [5.1, 3.5, 1.4, 0.2]}] * 2}
    told = ask(client, "/v1/models/iris", rows)
    assert [set(row) for row in told["predictions"]] == [{"label", "probabilities"}] * 2
    assert [row["label"] for row in told["predictions"]] == [0, 0]


@pytest.mark.parametrize("body", [{"instances": [[{"b64": "Y2F0"}], ["dog"]]},
                                  {"inputs": {"text": [[{"b64": "Y2F0"}], ["dog"]]}}])  # fmt: skip
def test_base64_stands_for_text(client: httpx.Client, body: Ask) -> None:
    """`{"b64": …}` is a value wherever a string is, not an object of names."""
    told = ask(client, "/v1/models/strings", body)
    codes = (
        [row["code"] for row in told["predictions"]]
        if "instances" in body
        else told["outputs"]["code"]
    )
    assert codes == [[1], [2]]


def test_a_version_answers_and_says_so(client: httpx.Client) -> None:
    """The address pins one, otherwise the newest answers; a header names it."""
    for place, version, value in (("", "2", 2.5), ("/versions/1", "1", 3.5)):
        answer = client.post(f"{TOY}{place}:predict", json={"instances": [1.0]})
        assert answer.json() == {"predictions": [value]}
        assert answer.headers["x-model-version"] == version
        assert "x-variant" not in answer.headers


def test_version_0_is_the_one_that_answers(client: httpx.Client) -> None:
    """OpenVINO's `ovmsclient` asks for it where its caller names no version, on every route."""
    answer = client.post(f"{TOY}/versions/0:predict", json={"inputs": [1.0]})
    assert (answer.status_code, answer.headers["x-model-version"]) == (200, "2")
    for path in ("", "/metadata"):
        assert client.get(f"{TOY}/versions/0{path}").json() == client.get(TOY + path).json()
    assert client.get(f"{TOY}/versions/00").status_code == 404


@pytest.mark.parametrize("name", ["", "serving_default", None])
def test_the_one_signature_may_be_named(client: httpx.Client, name: str | None) -> None:
    """It is `serving_default`, or left out."""
    body = {"signature_name": name, "inputs": [2.0]}
    assert ask(client, TOY, body) == {"outputs": [3.0]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"signature_name": "classify_x", "instances": [1.0]}, "'classify_x'"),
        ({"signature_name": 7, "instances": [1.0]}, "'signature_name' must be a string"),
        ({"instances": [1.0], "inputs": [1.0]}, "either 'instances' or 'inputs', got both"),
        ({"instance": [1.0]}, "did you mean 'instances'?"),
        ({}, "neither 'instances' nor 'inputs'"),
        ([1.0], "the body must be a JSON object"),
        ({"instances": 1.0}, "'instances' must be a list"),
        ({"instances": []}, "'instances' must have at least one"),
        ({"instances": ["one"]}, "'x' must be FP32, got the string 'one'"),
        ({"instances": [1.0, True]}, "got true at [1]"),
        ({"instances": [1.0, [2.0]]}, "ragged"),
        ({"instances": [[1.0], [2.0]]}, "must have shape [N], got [2, 1]"),
        ({"instances": [{"x": 1.0}, 2.0]}, "instances[1] must be an object"),
        ({"instances": [{"x": 1.0}, {"y": 2.0}]}, "instances[1]: input 'y' not found"),
        ({"instances": [{"x": 1.0}, {}]}, "instances[1]: input 'x' is missing"),
        ({"instances": [{"b64": "AAAA"}]}, "'x' must be FP32, got an object"),
        ({"inputs": {"y": [1.0]}}, "input 'y' not found"),
        ({"inputs": {}}, "input 'x' is missing"),
        ({"inputs": None}, "got null"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_400(client: httpx.Client, body: Any, said: str) -> None:
    """The sentence names the key, the input or the instance, and the server serves on."""
    status, code, sentence = refusal(client, TOY, body)
    assert (status, code) == (400, "InvalidInput")
    assert said in sentence
    assert ask(client, TOY, {"instances": [1.0]}) == {"predictions": [2.5]}


@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_several_inputs_need_their_names(client: httpx.Client, form: str) -> None:
    """A list without names does not say which of the inputs it is."""
    status, _, sentence = refusal(client, "/v1/models/sensors", {form: [1.0]})
    assert status == httpx.codes.BAD_REQUEST
    assert "'tag', 'signal', 'sensor'" in sentence
    assert f"'{form}'" in sentence


@pytest.mark.parametrize(
    ("value", "said"), [("!!!", "not base64"), ("žluť", "not base64"), ("/w==", "not UTF-8")]
)
def test_base64_that_is_none_is_400(client: httpx.Client, value: str, said: str) -> None:
    """Broken base64 does not reach the runtime; bytes that are not text do, and it fails."""
    told = refusal(client, "/v1/models/strings", {"instances": [[{"b64": value}]]})
    assert told[0] == httpx.codes.BAD_REQUEST
    assert said in told[2]


@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_texts_nested_deeper_than_any_tensor_are_400(client: httpx.Client, form: str) -> None:
    """JSON may nest a thousand lists, which is more than Python follows."""
    body = f'{{"{form}": {"[" * 1000}"a"{"]" * 1000}}}'
    answer = client.post("/v1/models/strings:predict", content=body)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "'text' is nested deeper than 64 lists" in answer.json()["error"]


def test_outputs_without_rows_are_asked_for_by_column(client: httpx.Client) -> None:
    """A scalar is not a row, so it is refused by row and answered by column."""
    assert ask(client, "/v1/models/scalar", {"inputs": 2.0}) == {"outputs": 4.0}
    status, _, _ = refusal(client, "/v1/models/scalar", {"instances": [2.0]})
    assert status == httpx.codes.BAD_REQUEST


def test_a_whole_number_without_rows(client: httpx.Client) -> None:
    """A scalar integer is answered as an integer."""
    assert ask(client, "/v1/models/count", {"inputs": 7}) == {"outputs": 7}


def test_outputs_that_are_no_tensors_are_left_out(client: httpx.Client) -> None:
    """A model with a sequence and a tensor as outputs answers with the tensor, without its name."""
    told = ask(client, "/v1/models/sequence", {"instances": [[1.0, 2.0, 3.0]]})
    assert told == {"predictions": [[1.0, 2.0, 3.0]]}


@pytest.mark.parametrize("path", ["/v1/models/nobody", f"{TOY}/versions/9", f"{TOY}/versions/x"])
def test_who_is_not_here_is_404(client: httpx.Client, path: str) -> None:
    """Predictions, status and metadata are all 404."""
    assert (refusal(client, path, {"instances": [1.0]}))[0] == httpx.codes.NOT_FOUND
    for asked in (path, f"{path}/metadata"):
        assert (client.get(asked)).status_code == httpx.codes.NOT_FOUND


def test_a_label_is_404_until_there_is_a_rollout(client: httpx.Client) -> None:
    """The error explains a label."""
    status, code, sentence = refusal(client, f"{TOY}/labels/canary", {"instances": [1.0]})
    assert (status, code) == (404, "NotFound")
    assert "'canary'" in sentence
    assert "rollout" in sentence
    assert (client.get(f"{TOY}/labels/canary")).status_code == httpx.codes.NOT_FOUND


@pytest.mark.parametrize(
    ("verb", "status"), [("classify", 400), ("regress", 400), ("Predict", 404), ("explain", 404)]
)
def test_other_verbs_are_refused_by_name(client: httpx.Client, verb: str, status: int) -> None:
    """An ONNX model accepts tensors, not tf.Examples; the error names the verb to use."""
    for place in ("", "/versions/1"):
        answer = client.post(f"{TOY}{place}:{verb}", json={"examples": [{"x": 1.0}]})
        assert answer.status_code == status
        assert f":{verb}" in answer.json()["error"]
        assert ":predict" in answer.json()["error"]


def test_predict_takes_post_only(client: httpx.Client) -> None:
    """GET on it is not a request about a model of that name."""
    assert (client.get(f"{TOY}:predict")).status_code == httpx.codes.METHOD_NOT_ALLOWED


def test_status_in_tensorflow_servings_shape(client: httpx.Client) -> None:
    """It lists every version with its state, or the requested one; a failed one has its reason."""
    told = (client.get(TOY)).json()["model_version_status"]
    fine = {"error_code": "OK", "error_message": ""}
    assert told[0] == {"version": "1", "state": "AVAILABLE", "status": fine}
    assert [one["state"] for one in told] == ["AVAILABLE", "AVAILABLE", "END"]
    assert told[2]["status"]["error_code"] == "UNKNOWN"
    assert told[2]["status"]["error_message"]
    one = (client.get(f"{TOY}/versions/1")).json()
    assert one == {"model_version_status": [told[0]]}


def test_readiness_in_kserves_shape(client: httpx.Client) -> None:
    """KServe's `is_model_ready` reads `ready`; who asks for one version is TensorFlow Serving's."""
    told = client.get(TOY).json()
    assert (told["name"], told["ready"]) == (TOY.rpartition("/")[2], True)
    assert "ready" not in client.get(f"{TOY}/versions/1").json()


def test_metadata_in_tensorflow_servings_shape(client: httpx.Client) -> None:
    """It lists the one signature with its tensors: open dimensions are -1 and keep their names."""
    told = (client.get("/v1/models/sensors/metadata")).json()
    assert told["model_spec"] == {"name": "sensors", "signature_name": "", "version": "1"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default"}
    signature = signatures["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert set(signature["outputs"]) == {"name", "image_bytes", "peak"}
    assert signature["inputs"]["tag"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["signal"] == {
        "name": "signal",
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": "N"}, {"size": "5", "name": ""}],
            "unknown_rank": False,
        },
    }


def test_requests_are_counted_as_callers_saw_them(client: httpx.Client) -> None:
    """Answered and refused ones alike, under the version that was chosen."""

    def counted() -> dict[str, float]:
        scrape = Scrape(str(client.base_url).rstrip("/"))
        return scrape.by("model_inference_total", "code", model="half-plus_n.x", version="1")

    before = counted()
    ask(client, f"{TOY}/versions/1", {"instances": [1.0]})
    refusal(client, f"{TOY}/versions/1", {"instances": ["one"]})
    grown = {code: value - before.get(code, 0) for code, value in counted().items()}
    assert grown == {"OK": 1, "InvalidInput": 1}
