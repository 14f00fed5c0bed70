"""Objects in pictures, over every API of a separate server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port, run_command
from tests.e2e.test_labels import keys, whole
from tests.rpc.client import PATH
from tests.waiting import PATIENCE

FOUND = [
    [[0, 0, 10, 20, 0.25, 0], [10, 10, 30, 40, 0.75, 1], [1, 1, 2, 2, 0.125, 0]],
    [[5, 5, 6, 6, 0.0625, 1], [5, 5, 6, 6, 0.0625, 1], [5, 5, 6, 7, 0.5, 2]],
]
CONFIG = """
outputs:
  boxes:
    detections: {scores: scores, classes: classes, threshold: 0.2, labels: labels.txt}
"""
PACKED = """
outputs:
  packed:
    detections: {scores: 4, classes: 5, format: xywh, size: [20, 10], threshold: 0.2}
"""
PIPELINE = """
steps:
  find: {model: things, inputs: {x: x}}
  again: {model: plain, inputs: {x: find.packed}}
outputs:
  boxes:
    from: again.boxes
    detections: {scores: scores, threshold: 0.6}
  scores: {from: find.scores}
"""


def thing(label: str, score: float, *box: float) -> dict[str, Any]:
    corners = dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return {"label": label, "score": score, "box": corners}


OBJECTS = [
    [thing("dog", 0.75, 10, 10, 30, 40), thing("cat", 0.25, 0, 0, 10, 20)],
    [thing("2", 0.5, 5, 5, 6, 7)],
]


FLAT = "outputs: {boxes: {detections: {scores: scores}}}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """It serves models with objects, and a pipeline of them."""
    folder = tmp_path_factory.mktemp("detections")
    models = folder / "models"
    for name, config in (("things", CONFIG), ("packed", PACKED), ("plain", "")):
        onnx_models.save(onnx_models.detections(), models / f"{name}/1/model.onnx")
        (models / name / "config.yaml").write_text(config)
    onnx_models.save(onnx_models.boxes_of_one_picture(), models / "flat/1/model.onnx")
    (models / "flat/config.yaml").write_text(FLAT)
    (models / "things/1/labels.txt").write_text("cat\ndog\n")
    (models / "p").mkdir()
    (models / "p/pipeline.yaml").write_text(PIPELINE)
    with cohort(models, folder, grpc_port=free_port()) as started:
        yield started


def post(server: Cohort, path: str, **body: Any) -> Any:
    return httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE).json()


def test_every_answer_in_json_has_the_objects_of_each_picture(server: Cohort) -> None:
    """The best object comes first."""
    named = post(server, "/models/things/predict", inputs={"x": FOUND})
    assert named["detections"] == OBJECTS
    np.testing.assert_array_equal(named["outputs"]["packed"], FOUND)
    for answer in (
        post(server, "/predict", model="things", input=FOUND),
        post(server, "/v1/models/things:predict", instances=FOUND),
        post(server, "/v1/models/things:predict", inputs={"x": FOUND}),
        post(server, "/invocations?model=things", instances=FOUND),
    ):
        assert answer["detections"] == OBJECTS
    one = post(server, "/models/things/predict", input=FOUND[1:])
    assert one["detections"] == OBJECTS[1:]


def test_objects_come_where_their_boxes_are_asked_for(server: Cohort) -> None:
    """The other outputs need not be; V2 has the tensors only."""
    asked = post(server, "/models/things/predict", inputs={"x": FOUND}, outputs=["boxes"])
    assert asked["detections"] == OBJECTS
    assert [*asked["outputs"]] == ["boxes"]
    other = post(server, "/models/things/predict", inputs={"x": FOUND}, outputs=["scores"])
    assert "detections" not in other
    x = {"name": "x", "datatype": "FP32", "shape": [2, 3, 6], "data": FOUND}
    tensors = post(server, "/v2/models/things/infer", inputs=[x])["outputs"]
    assert [one["name"] for one in tensors] == ["boxes", "scores", "classes", "packed"]


def test_score_and_class_in_columns_and_parts_of_the_picture(server: Cohort) -> None:
    """A class without a label is its number."""
    answer = post(server, "/models/packed/predict", input=FOUND[:1])
    assert answer["detections"] == [
        [thing("1", 0.75, 1, 0.5, 4, 2.5), thing("0", 0.25, 0, 0, 1, 1)]
    ]
    empty = post(server, "/models/things/predict", inputs={"x": [[[9, 9, 9, 9, 0, 0]]]})
    assert empty["detections"] == [[]]


def test_a_pipeline_may_have_objects(server: Cohort) -> None:
    """Boxes and scores may be outputs of different steps."""
    answer = post(server, "/models/p/predict", input=FOUND)
    box = {"xmin": 10.0, "ymin": 10.0, "xmax": 30.0, "ymax": 40.0}
    assert answer["detections"] == [[{"score": 0.75, "box": box}], []]


def test_boxes_of_one_picture_over_every_api(server: Cohort) -> None:
    """Small requests of such a model are answered alone, and binary ones have its tensors."""
    rows = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    boxes = [dict(zip(("xmin", "ymin", "xmax", "ymax"), row, strict=True)) for row in rows]
    expected = [[{"score": sum(row), "box": box} for row, box in zip(rows, boxes, strict=True)]]
    expected[0].reverse()
    for path, key in (("/models/flat/predict", "input"), ("/v1/models/flat:predict", "instances")):
        assert post(server, path, **{key: rows})["detections"] == expected
    x = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": rows}
    tensors = post(server, "/v2/models/flat/infer", inputs=[x])["outputs"]
    assert [one["shape"] for one in tensors] == [[2, 4], [2]]
    with grpc.insecure_channel(server.grpc) as channel:
        infer: Any = channel.unary_unary(
            f"{PATH}/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        request = messages.ModelInferRequest(model_name="flat")
        request.inputs.add(name="x", datatype="FP32", shape=[2, 4])
        sent = np.array(rows, np.float32).tobytes()
        request.raw_input_contents.append(sent)
        assert infer(request, timeout=PATIENCE).raw_output_contents[0] == sent


def test_many_objects_are_written_off_the_event_loop(server: Cohort) -> None:
    """The answer is that of a small request."""
    many = [FOUND[0] * 2000]
    answer = post(server, "/models/things/predict", input=many)
    assert answer["detections"] == [[OBJECTS[0][0]] * 2000 + [OBJECTS[0][1]] * 2000]


def test_objects_are_described(server: Cohort) -> None:
    """`/models/<name>` and the OpenAPI document describe them."""
    (boxes, *_) = httpx.get(f"{server.url}/models/things").json()["versions"][0]["outputs"]
    assert boxes["detections"] == {
        "scores": "scores", "classes": "classes", "unit": "pixels", "size": None,
        "threshold": 0.2, "top": None, "labels": ["cat", "dog"],
    }  # fmt: skip
    document = httpx.get(f"{server.url}/openapi.json").json()
    operation = whole(document, document["paths"]["/models/things/predict"]["post"])
    assert {"detections", "label", "score", "box", "xmin"} <= keys(operation)
    plain = whole(document, document["paths"]["/models/plain/predict"]["post"])
    assert "detections" not in keys(plain)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("boxes: {detections: {scores: score}}", "scores: there is no output 'score'"),
        ("boxes: {detections: {scores: 4}}", "scores: 4 is not a column after the box"),
        ("packed: {detections: {scores: 6}}", "6 is not a column after the box, in shape"),
        (
            "scores: {detections: {scores: boxes}}",
            "boxes has shape [N, K, 4], but the boxes have [N, K]",
        ),
        ("boxes: {detections: {classes: classes}}", "scores"),
        ("boxes: {detections: {scores: scores, format: ltrb}}", "format"),
        ("boxes: {detections: {scores: scores, size: [1]}}", "size: must be [height, width]"),
        (
            "boxes: {detections: {scores: scores, size: [8, 8], normalized: true}}",
            "set either normalized or size, not both",
        ),
        (
            "boxes: {detections: {scores: scores, labels: none.txt}}",
            "outputs.boxes.detections.labels: there is no none.txt in the version's folder",
        ),
        ("boxes: {labels: [a], detections: {scores: scores}}", "outputs.boxes"),
    ],
)
def test_a_check_says_what_does_not_fit(tmp_path: Path, said: str, sentence: str) -> None:
    """Its line begins with the file."""
    onnx_models.save(onnx_models.detections(), tmp_path / "models/m/1/model.onnx")
    (tmp_path / "models/m/config.yaml").write_text(f"outputs:\n  {said}\n")
    checked = run_command("check", "models", cwd=tmp_path)
    assert checked.returncode == 1
    text = checked.stdout + checked.stderr
    (line,) = [one for one in text.splitlines() if one.startswith("m/config.yaml")]
    assert sentence in line
