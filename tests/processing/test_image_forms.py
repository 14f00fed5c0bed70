"""Pictures reach a model by every API and in every form, as the same pixels."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from PIL import Image

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.processing.pictures import channel_means, picture, saved
from tests.rpc.client import PATH
from tests.waiting import PATIENCE

PHOTO = picture(120, 90)
JPEG = saved(PHOTO, "JPEG")
PNG = saved(picture(64, 64, seed=1), "PNG")
CONFIG = "inputs: {image: {image: {mean: [0.5, 0.4, 0.3], std: [0.2, 0.3, 0.4]}}}\n"
TEXT = {"b64": b64encode(JPEG).decode()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A process with a model of any number of pictures, and one of exactly one."""
    folder = tmp_path_factory.mktemp("pictures")
    sizes: dict[str, int | str] = {"look": "N", "one": 1}
    for name, rows in sizes.items():
        model = channel_means((rows, 3, 32, 48))
        onnx_models.save(model, folder / "models" / name / "1/model.onnx")
        (folder / "models" / name / "config.yaml").write_text(CONFIG)
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Cohort) -> Iterator[httpx.Client]:
    """One client for all tests."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def means(file: bytes) -> Any:
    """Return the model's outputs, computed by numpy alone."""
    resized = Image.open(BytesIO(file)).convert("RGB").resize((48, 32), Image.Resampling.BILINEAR)
    values = (np.asarray(resized) / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    return values.mean(axis=(0, 1)).tolist()


def close(got: Any, *files: bytes) -> None:
    np.testing.assert_allclose(got, [means(file) for file in files], atol=1e-4)


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "path", ["/models/look/predict", "/predict?model=look", "/models/one/predict"]
)
@pytest.mark.parametrize("media", ["image/jpeg", "application/octet-stream"])
def test_the_body_is_a_picture(client: httpx.Client, path: str, media: str) -> None:
    """The whole body is it, with a media type of pictures or of any bytes."""
    answer = client.post(path, content=JPEG, headers={"content-type": media})
    close(ok(answer)["prediction"], JPEG)


def test_the_parts_of_a_form_are_pictures(client: httpx.Client) -> None:
    """Several of its name are rows, however long each is."""
    parts = [("image", ("a.jpg", JPEG, "image/jpeg")), ("image", ("b.png", PNG, "image/png"))]
    answer = ok(client.post("/models/look/predict", files=parts))
    close(answer["outputs"]["mean"], JPEG, PNG)
    answer = ok(client.post("/invocations?model=look", files=parts))
    close(answer["predictions"], JPEG, PNG)


@pytest.mark.parametrize(
    "value",
    [TEXT, [TEXT], TEXT["b64"], [TEXT["b64"]], f"data:image/jpeg;base64,{TEXT['b64']}"],
)
def test_base64_in_json_is_a_picture(client: httpx.Client, value: Any) -> None:
    """It may be an object, alone or in a list; a string; or a data: URL."""
    answer = ok(client.post("/predict", json={"model": "look", "inputs": {"image": value}}))
    close(answer["outputs"]["mean"], JPEG)
    close(ok(client.post("/models/look/predict", json={"input": value}))["prediction"], JPEG)


def test_rows_of_different_length_in_json(client: httpx.Client) -> None:
    """Two pictures of different size may be in one list."""
    two = [TEXT, {"b64": b64encode(PNG).decode()}]
    close(ok(client.post("/models/look/predict", json={"input": two}))["prediction"], JPEG, PNG)
    answer = ok(client.post("/v1/models/look:predict", json={"instances": two}))
    close(answer["predictions"], JPEG, PNG)
    answer = ok(client.post("/v1/models/look:predict", json={"instances": [{"image": TEXT}]}))
    close(answer["predictions"], JPEG)


def test_the_open_inference_protocol_shows_bytes(client: httpx.Client) -> None:
    """[N], and takes base64 in JSON and the bytes themselves in binary."""
    (shown,) = ok(client.get("/v2/models/look"))["inputs"]
    assert (shown["name"], shown["datatype"], shown["shape"]) == ("image", "BYTES", [-1])
    tensor: dict[str, Any] = {"name": "image", "datatype": "BYTES", "shape": [1]}
    answer = client.post(
        "/v2/models/look/infer", json={"inputs": [{**tensor, "data": [TEXT["b64"]]}]}
    )
    close([ok(answer)["outputs"][0]["data"]], JPEG)
    answer = client.post("/v2/models/look/infer", json={"inputs": [{**tensor, "data": [TEXT]}]})
    close([ok(answer)["outputs"][0]["data"]], JPEG)
    data = b"".join(len(one).to_bytes(4, "little") + one for one in (JPEG, PNG))
    tensor |= {"shape": [2], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    sent = {"inference-header-content-length": str(len(head))}
    answer = client.post("/v2/models/look/infer", content=head + data, headers=sent)
    close(np.reshape(ok(answer)["outputs"][0]["data"], (2, 3)), JPEG, PNG)


@pytest.mark.parametrize("raw", [False, True])
def test_grpc_takes_the_bytes(server: Cohort, raw: bool) -> None:
    """Typed and raw contents are accepted."""
    request = messages.ModelInferRequest(model_name="look")
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[2])
    if raw:
        parts = [len(one).to_bytes(4, "little") + one for one in (JPEG, PNG)]
        request.raw_input_contents.append(b"".join(parts))
    else:
        tensor.contents.bytes_contents.extend([JPEG, PNG])
    with grpc.insecure_channel(server.grpc) as channel:
        ask: Any = channel.unary_unary(
            f"{PATH}/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        answer = ask(request, timeout=PATIENCE)
    if answer.raw_output_contents:
        got = np.frombuffer(answer.raw_output_contents[0], np.float32)
    else:
        got = np.array(answer.outputs[0].contents.fp32_contents)
    close(got.reshape(2, 3), JPEG, PNG)


def test_the_body_of_invocations_is_a_picture(client: httpx.Client) -> None:
    """Its media type is one of a picture."""
    answer = client.post(
        "/invocations?model=look", content=JPEG, headers={"content-type": "image/jpeg"}
    )
    close(ok(answer)["predictions"], JPEG)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "!!",
            "got a string that is not base64: send the bytes of the file",
        ),
        ("data:image/png,abc", "a data: URL that is not base64"),
        ([TEXT, ""], "row 1"),
        (
            [TEXT, {"b64": b64encode(b"%PDF-1.7 and so on").decode()}],
            "row 1: expected a picture (JPEG",
        ),
        ([TEXT, {"b64": b64encode(JPEG[:2000]).decode()}], "row 1: expected a picture"),
        (3, "image"),
        (None, "image"),
        ([[TEXT]], "must have shape [N], got [1, 1]"),
    ],
)
def test_what_is_no_picture_is_told(client: httpx.Client, value: Any, says: str) -> None:
    """The error has the input, the row, and the expected and received values."""
    answer = client.post("/models/look/predict", json={"input": value})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"], answer.json()["error"]


def test_a_model_of_one_picture_takes_one(client: httpx.Client) -> None:
    """Two are refused with both numbers."""
    answer = client.post("/models/one/predict", json={"input": [TEXT, TEXT]})
    assert answer.status_code == 400
    assert "must have shape [1], got [2]" in answer.json()["error"]


def test_the_document_says_that_files_are_taken(client: httpx.Client) -> None:
    """OpenAPI has the form and the whole body."""
    operation = ok(client.get("/openapi.json"))["paths"]["/models/look/predict"]["post"]
    assert "multipart/form-data" in operation["description"]
    assert "the input's bytes" in operation["description"]
