"""Labels of the best classes, from a separate server, over every API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnxruntime
import pytest

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port, run_command
from tests.rpc.client import PATH
from tests.waiting import PATIENCE, wait_until

ROWS = [[0.5, -1.25, 3.0, 0.001], [1.0, 2.0, 3.0, 4.0]]
LABELS = ["circle", "square", "Größe"]
CONFIG = "outputs: {y: {labels: labels.txt, softmax: true}}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with labels of its config, one with a threshold, one with classes, one without."""
    made = tmp_path_factory.mktemp("labels")
    for name in ("shapes", "tags", "plain"):
        onnx_models.save(onnx_models.mlp(), made / f"models/{name}/1/model.onnx")
    onnx_models.save(onnx_models.scores_by_class(labels=1), made / "models/pets/1/model.onnx")
    (made / "models/shapes/config.yaml").write_text(CONFIG)
    (made / "models/shapes/1/labels.txt").write_text("\n".join(LABELS) + "\n", "utf-8")
    (made / "models/tags/config.yaml").write_text(
        "outputs: {y: {labels: [a, b, c], sigmoid: true, threshold: 0.5, round: 3}}\n"
    )
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    """It serves them."""
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def post(server: Cohort, path: str, **body: Any) -> Any:
    return httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE).json()


def scores(folder: Path) -> Any:
    """Return the model's output for ROWS, after a softmax."""
    session = onnxruntime.InferenceSession(str(folder / "models/shapes/1/model.onnx"))
    (raw,) = session.run(None, {"x": np.array(ROWS, np.float32)})
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def best(values: Any, count: int) -> list[dict[str, Any]]:
    """The labels that the best of these numbers have."""
    order = np.argsort(-np.array(values), kind="stable")[:count].tolist()
    return [{"label": LABELS[at], "score": values[at]} for at in order]


@pytest.mark.parametrize(
    "path", ["/predict", "/models/shapes/predict", "/models/shapes/versions/1/predict"]
)
def test_the_simple_api(server: Cohort, folder: Path, path: str) -> None:
    """A row has one label without `top`, a list with it, with the same numbers as the outputs."""
    named = post(server, path, model="shapes", inputs={"x": ROWS})
    numbers = named["outputs"]["y"]
    np.testing.assert_allclose(numbers, scores(folder), rtol=1e-5)
    assert named["labels"] == [best(row, 1)[0] for row in numbers]
    alone = post(server, path, model="shapes", input=ROWS)
    assert alone["labels"] == named["labels"]
    for asked in (
        post(server, f"{path}?top=2", model="shapes", inputs={"x": ROWS}),
        post(server, path, model="shapes", inputs={"x": ROWS}, parameters={"top": 2}),
        post(server, f"{path}?top=2", model="shapes", inputs={"x": ROWS}, parameters={"top": "2"}),
    ):
        assert asked["labels"] == [best(row, 2) for row in numbers]
    everything = post(server, f"{path}?top=99", model="shapes", inputs={"x": ROWS[:1]})
    assert everything["labels"] == [best(numbers[0], 3)]


def test_v1_and_invocations(server: Cohort) -> None:
    """Labels are next to `predictions`."""
    rows = post(server, "/v1/models/shapes:predict", instances=ROWS)
    assert rows["labels"] == [best(row, 1)[0] for row in rows["predictions"]]
    columns = post(server, "/v1/models/shapes:predict?top=2", inputs={"x": ROWS})
    assert columns["labels"] == [best(row, 2) for row in columns["outputs"]]
    invoked = post(server, "/invocations?model=shapes&top=2", instances=ROWS)
    assert invoked == {"predictions": rows["predictions"], "labels": columns["labels"]}
    params = post(server, "/invocations?model=shapes", instances=ROWS, params={"top": 2})
    assert params == invoked


def infer_body(**more: Any) -> dict[str, Any]:
    flat = [number for row in ROWS for number in row]
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": flat}], **more}


def test_v2(server: Cohort) -> None:
    """The labels are a separate output, which metadata lists and requests may name."""
    path = "/v2/models/shapes/infer"
    numbers, names = post(server, path, **infer_body())["outputs"]
    rows = np.reshape(numbers["data"], (2, 3)).tolist()
    one, two = ([[label["label"] for label in best(row, k)] for row in rows] for k in (1, 2))
    expected = {"name": "y_labels", "datatype": "BYTES", "shape": [2], "data": [*chain(*one)]}
    assert names == expected
    _, several = post(server, path, **infer_body(parameters={"top": 2}))["outputs"]
    assert several == {**expected, "shape": [2, 2], "data": [*chain(*two)]}
    asked = infer_body(outputs=[{"name": "y"}])
    assert [one["name"] for one in post(server, path, **asked)["outputs"]] == ["y"]
    asked["parameters"] = {"top": 2}
    assert post(server, path, **asked)["outputs"] == [numbers, several]
    only = post(server, path, **infer_body(outputs=[{"name": "y_labels"}]))["outputs"]
    assert only == [expected]
    described = httpx.get(f"{server.url}/v2/models/shapes").json()["outputs"]
    assert described[1] == {"name": "y_labels", "datatype": "BYTES", "shape": [-1]}
    outputs = httpx.get(f"{server.url}/v2/models/shapes/config").json()["output"]
    assert (outputs[1]["name"], outputs[1]["data_type"]) == ("y_labels", "TYPE_STRING")


def test_v2_in_binary(server: Cohort) -> None:
    """They are texts with their lengths, as all BYTES are."""
    asked = infer_body(parameters={"binary_data_output": True, "top": 1})
    response = httpx.post(f"{server.url}/v2/models/shapes/infer", json=asked)
    length = int(response.headers["inference-header-content-length"])
    numbers, names = json.loads(response.content[:length])["outputs"]
    rest = response.content[length:]
    values = np.frombuffer(rest[: numbers["parameters"]["binary_data_size"]], np.float32)
    texts = [best(row.tolist(), 1)[0]["label"].encode() for row in values.reshape(2, 3)]
    sent = b"".join(len(one).to_bytes(4, "little") + one for one in texts)
    assert rest[values.nbytes :] == sent
    assert names["shape"] == [2, 1]
    assert names["parameters"] == {"binary_data_size": len(sent)}


def test_classifications_have_the_same_labels(server: Cohort) -> None:
    """Triton's extension has them over REST."""
    named = {"name": "y", "parameters": {"classification": 1}}
    (classes,) = post(server, "/v2/models/shapes/infer", **infer_body(outputs=[named]))["outputs"]
    simple = post(server, "/models/shapes/predict", input=ROWS)["labels"]
    assert [one.split(":")[2] for one in classes["data"]] == [one["label"] for one in simple]


def test_grpc(server: Cohort) -> None:
    """`ModelInfer` returns them as REST does, with and without the parameter."""
    with grpc.insecure_channel(server.grpc) as channel:
        infer: Any = channel.unary_unary(
            f"{PATH}/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        request = messages.ModelInferRequest(model_name="shapes")
        request.inputs.add(name="x", datatype="FP32", shape=[2, 4])
        request.raw_input_contents.append(np.array(ROWS, np.float32).tobytes())
        said = post(server, "/models/shapes/predict", input=ROWS)["labels"]
        for top, shape in ((0, [2]), (2, [2, 2])):
            if top:
                request.parameters["top"].int64_param = top
            answer = infer(request, timeout=PATIENCE)
            tensor = answer.outputs[1]
            assert (tensor.name, tensor.datatype, [*tensor.shape]) == ("y_labels", "BYTES", shape)
            first = said[0]["label"].encode()
            sent = answer.raw_output_contents[1]
            assert sent.startswith(len(first).to_bytes(4, "little") + first)
        request.parameters["top"].int64_param = 0
        with pytest.raises(grpc.RpcError, match=r"parameters\.top must be a whole number >= 1"):
            infer(request, timeout=PATIENCE)


def test_a_threshold_gives_each_row_a_list(server: Cohort) -> None:
    """Each row has all labels that reach it, with the rounded numbers."""
    found = post(server, "/models/tags/predict", input=ROWS)
    for row, labels in zip(found["prediction"], found["labels"], strict=True):
        assert row == [round(number, 3) for number in row]
        reached = {label: score for label, score in zip("abc", row, strict=True) if score >= 0.5}
        assert {one["label"]: one["score"] for one in labels} == reached
        assert [one["score"] for one in labels] == sorted(reached.values(), reverse=True)


def test_classes_of_the_file_are_labels_where_they_are_asked_for(server: Cohort) -> None:
    """Without `top` the answer has no labels."""
    plain = post(server, "/models/pets/predict", input=[[0.5, 0.25]])
    assert "labels" not in plain
    asked = post(server, "/models/pets/predict?top=1", input=[[0.5, 0.25]])
    assert [one["label"] for one in asked["labels"][0]] == plain["prediction"]["label"]
    wrong = {"inputs": {"x": [[0.5, 0.25]]}, "outputs": ["label"]}
    said = post(server, "/models/pets/predict?top=1", **wrong)
    assert said["code"] == "InvalidInput"
    assert "'scores' has" in said["error"]


@pytest.mark.parametrize("top", ["0", "-1", "x", "", "1.5"])
@pytest.mark.parametrize(
    "path", ["/predict", "/models/shapes/predict", "/v1/models/shapes:predict"]
)
def test_a_top_that_is_none_is_refused(server: Cohort, path: str, top: str) -> None:
    """The error has the rule and the value."""
    key = "instances" if "v1" in path else "input"
    model = {"model": "shapes"} if path == "/predict" else {}
    response = httpx.post(f"{server.url}{path}?top={top}", json={key: ROWS, **model})
    assert response.status_code == 400
    assert "'top' must be a whole number >= 1, got" in response.json()["error"]


def test_a_model_without_labels_says_how_to_have_them(server: Cohort) -> None:
    """Its answers have no such key."""
    assert "labels" not in post(server, "/models/plain/predict", input=ROWS)
    for said in (
        post(server, "/models/plain/predict?top=1", input=ROWS),
        post(server, "/v1/models/plain:predict?top=1", instances=ROWS),
        post(server, "/v2/models/plain/infer", **infer_body(parameters={"top": 1})),
    ):
        assert "outputs: {<name>: {labels: labels.txt}}" in said["error"]


def test_labels_are_described(server: Cohort) -> None:
    """`/models/<name>` and the OpenAPI document describe them."""
    (output,) = httpx.get(f"{server.url}/models/shapes").json()["versions"][0]["outputs"]
    assert output["classes"] == LABELS
    assert output["labels"] == {
        "always": True, "output": "y_labels", "shape": ["N"], "threshold": None
    }  # fmt: skip
    document = httpx.get(f"{server.url}/openapi.json").json()
    operation = whole(document, document["paths"]["/models/shapes/predict"]["post"])
    assert {"label", "score"} <= keys(operation)
    assert "top" in [one["name"] for one in operation["parameters"]]
    plain = whole(document, document["paths"]["/models/plain/predict"]["post"])
    assert "labels" not in keys(plain)


def whole(document: Any, part: Any) -> Any:
    """Return a part of a document with its references resolved."""
    if isinstance(part, list):
        return [whole(document, one) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        found = document
        for key in part["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return whole(document, found)
    return {key: whole(document, value) for key, value in part.items()}


def keys(part: Any) -> set[str]:
    """All keys in a document."""
    if isinstance(part, list):
        return set().union(*map(keys, part))
    return {*part}.union(*map(keys, part.values())) if isinstance(part, dict) else set()


def test_a_check_names_a_config_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    """Its line begins with the file, and has both numbers."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "shapes/1/model.onnx")
    (tmp_path / "shapes/config.yaml").write_text(CONFIG)
    (tmp_path / "shapes/1/labels.txt").write_text("a\nb\n")
    checked = run_command("check", "--models", tmp_path)
    assert checked.returncode == 1
    line = "shapes/config.yaml: outputs.y.labels: 2 labels for an output of 3 columns"
    assert line in checked.stdout.splitlines()[-1]
    assert checked.stdout.splitlines()[-1].startswith("shapes/config.yaml")
    profiled = run_command("profile", "--models", tmp_path, "shapes")
    assert profiled.returncode == 1
    assert line in profiled.stderr


def test_labels_that_change_on_disk_take_effect(tmp_path: Path) -> None:
    """Other names for the same columns are read from `labels.txt` and from `config.yaml`."""
    model = tmp_path / "models/shapes"
    onnx_models.save(onnx_models.mlp(), model / "1/model.onnx")
    (model / "config.yaml").write_text(CONFIG)
    labels = model / "1/labels.txt"
    labels.write_text("circel\ncircel\ncircel\n")

    def label() -> str:
        found = post(started, "/models/shapes/predict", input=ROWS[:1])
        return str(found["labels"][0]["label"])

    with cohort(tmp_path / "models", tmp_path) as started:
        assert label() == "circel"
        labels.write_text("circle\ncircle\ncircle\n")
        wait_until(lambda: label() == "circle")
        (model / "config.yaml").write_text("outputs: {y: {labels: [a, a, a]}}\n")
        wait_until(lambda: label() == "a")
