"""Pipelines of pictures and labels, over every API and in every form; and their members' caches."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from itertools import chain
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.onnx_models import save
from tests.pipelines.graphs import affine
from tests.processing.pictures import channel_means, picture, saved
from tests.processing.test_image_forms import means
from tests.rpc.client import arrays_of, connected, raw_request
from tests.waiting import PATIENCE

FILES = [saved(picture(120, 90), "JPEG"), saved(picture(64, 64, seed=1), "PNG")]
TEXTS: list[Any] = [{"b64": b64encode(file).decode()} for file in FILES]
LABELS = ["red", "green", "blue"]
PHOTOS = """\
inputs: {photo: {image: {mean: [0.5, 0.4, 0.3], std: [0.2, 0.3, 0.4]}}}
steps:
  look: {model: look, inputs: {image: photo}}
  twice: {model: twice, inputs: {x: look.mean}}
outputs: {score: {from: twice.y, labels: labels.txt}}
"""
SCORES = [[2 * value for value in means(file)] for file in FILES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A pipeline of pictures, and one whose only model keeps its answers."""
    folder = tmp_path_factory.mktemp("forms")
    models = folder / "models"
    save(channel_means(), models / "look/1/model.onnx")
    save(affine(2, width=3), models / "twice/1/model.onnx")
    save(affine(3), models / "kept/1/model.onnx")
    (models / "kept/config.yaml").write_text("cache: {max_mb: 1}\n")
    plain = "steps: {a: {model: kept, inputs: {x: x}}}\noutputs: {y: a.y}\n"
    around = "steps: {a: {model: plain, inputs: {x: x}}}\noutputs: {y: {from: a.y, round: 2}}\n"
    for name, text in {"photos": PHOTOS, "plain": plain, "around": around}.items():
        (models / name).mkdir()
        (models / name / "pipeline.yaml").write_text(text)
    (models / "photos/labels.txt").write_text("\n".join(LABELS) + "\n")
    with cohort(models, folder, grpc_port=free_port()) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Cohort) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def best(count: int, rows: int = 2) -> list[list[str]]:
    """The labels of each picture, best first."""
    return [[LABELS[at] for at in np.argsort(row)[::-1][:count]] for row in SCORES[:rows]]


def check(scores: Any, labels: Any = None, *, rows: int = 2) -> None:
    """Compare answers with those of numpy and Pillow: one label a row, or several."""
    np.testing.assert_allclose(scores, SCORES[:rows], atol=1e-3)
    if labels is not None:
        listed = [row if isinstance(row, list) else [row] for row in labels]
        found = [[one["label"] for one in row] for row in listed]
        assert found == best(len(listed[0]), rows)


def test_the_simple_api(client: httpx.Client) -> None:
    """It accepts base64, a body and a form; labels are next to the numbers."""
    for query, count in (("", 1), ("?top=3", 3)):
        path = f"/models/photos/predict{query}"
        told = ok(client.post(path, json={"inputs": {"photo": TEXTS}}))
        check(told["outputs"]["score"], told["labels"])
        assert np.size(told["labels"]) == 2 * count
        body = ok(client.post(path, content=FILES[0], headers={"content-type": "image/jpeg"}))
        check(body["prediction"], body["labels"], rows=1)
        parts = [("photo", ("a", file, "image/jpeg")) for file in FILES]
        form = ok(client.post(path, files=parts))
        check(form["outputs"]["score"], form["labels"])


def test_v1_and_invocations(client: httpx.Client) -> None:
    """V1 and /invocations accept rows and columns for a pipeline."""
    for path in ("/v1/models/photos:predict?top=2", "/invocations?model=photos&top=2"):
        told = ok(client.post(path, json={"instances": TEXTS}))
        check(told["predictions"], told["labels"])
    columns = ok(client.post("/v1/models/photos:predict", json={"inputs": {"photo": TEXTS}}))
    check(columns["outputs"], columns["labels"])
    frame = {"columns": ["photo"], "data": [[text["b64"]] for text in TEXTS]}
    invoked = ok(client.post("/invocations?model=photos", json={"dataframe_split": frame}))
    check(invoked["predictions"], invoked["labels"])


def test_v2_in_json(client: httpx.Client) -> None:
    """The input is BYTES, and the labels are a separate output."""
    described = ok(client.get("/v2/models/photos"))
    (photo,) = described["inputs"]
    assert (photo["name"], photo["datatype"], photo["shape"]) == ("photo", "BYTES", [-1])
    assert [one["name"] for one in described["outputs"]] == ["score", "score_labels"]
    asked = {"inputs": [{**photo, "shape": [2], "data": TEXTS}], "parameters": {"top": 2}}
    score, names = ok(client.post("/v2/models/photos/infer", json=asked))["outputs"]
    check(np.reshape(score["data"], (2, 3)))
    assert (names["shape"], names["data"]) == ([2, 2], [*chain(*best(2))])


def test_v2_in_binary(client: httpx.Client) -> None:
    """Requests and responses may be binary."""
    sent = b"".join(len(one).to_bytes(4, "little") + one for one in FILES)
    tensor: dict[str, Any] = {"name": "photo", "datatype": "BYTES", "shape": [2]}
    tensor["parameters"] = {"binary_data_size": len(sent)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = {"inference-header-content-length": str(len(head))}
    answer = client.post("/v2/models/photos/infer", content=head + sent, headers=length)
    assert answer.status_code == 200, answer.text
    got = answer.content[int(answer.headers["inference-header-content-length"]) :]
    check(np.frombuffer(got[:24], np.float32).reshape(2, 3))
    names = b"".join(len(one).to_bytes(4, "little") + one.encode() for (one,) in best(1))
    assert got[24:] == names


async def test_grpc(server: Cohort) -> None:
    """The bytes as they are."""
    photos = np.empty(2, np.object_)
    photos[:] = FILES
    request = raw_request("photos", {"photo": photos})
    request.parameters["top"].int64_param = 2
    async with connected(server.grpc) as client:
        arrays = arrays_of(await client.call("ModelInfer", request))
    check(arrays["score"])
    assert arrays["score_labels"].tolist() == best(2)


def test_what_is_wrong_is_told_as_of_a_model(client: httpx.Client) -> None:
    """The error names the pipeline's input, or the pipeline's file."""
    damaged = [TEXTS[0], {"b64": b64encode(FILES[0][:2000]).decode()}]
    refused = client.post("/models/photos/predict", json={"inputs": {"photo": damaged}})
    assert refused.status_code == 400
    assert "'photo' row 1" in refused.json()["error"].replace(", ", " "), refused.text
    refused = client.post("/models/plain/predict?top=2", json={"input": [[1.0] * 4]})
    assert refused.status_code == 400
    assert "pipeline.yaml" in refused.json()["error"]


@pytest.mark.parametrize("model", ["plain", "around"])
def test_no_store_reaches_the_caches_of_the_steps(
    server: Cohort, client: httpx.Client, model: str
) -> None:
    """It also reaches them through an inner pipeline, and with finished outputs."""

    def looked() -> float:
        scrape = Scrape(server.url)
        return sum(
            scrape.value(f"model_cache_{one}_total", model="kept") for one in ("hits", "misses")
        )

    x, y = [[float(len(model))] * 4], [[3 * len(model)] * 4]
    path, body = f"/models/{model}/predict", {"inputs": {"x": x}}
    before = looked()
    no_store = {"cache-control": "no-store"}
    for _ in range(2):
        assert ok(client.post(path, json=body, headers=no_store))["outputs"]["y"] == y
    assert looked() == before
    for _ in range(2):
        assert ok(client.post(path, json=body))["outputs"]["y"] == y
    assert looked() == before + 2
