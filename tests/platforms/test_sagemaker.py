"""SageMaker starts the process with its variables, and calls it as its contracts say.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
https://docs.aws.amazon.com/sagemaker/latest/dg/mms-container-apis.html
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import httpx
import pytest

from cohort.errors import ModelNotFound
from cohort.operating import ControlPlane, MultiModel
from tests.bundled import model_path
from tests.e2e.processes import ROOT, Cohort, free_port
from tests.platforms.starting import platform
from tests.waiting import iterations

ROWS = {"instances": [[5.1, 3.5, 1.4, 0.2]]}


def put_model(folder: Path) -> Path:
    """An extracted model.tar.gz."""
    folder.mkdir(parents=True)
    shutil.copy(model_path("iris", 1), folder / "flowers.onnx")
    return folder


def test_one_model_answers_pings_and_invocations(tmp_path: Path) -> None:
    """On SageMaker's port, in JSON and CSV."""
    port = free_port()
    environment = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "COHORT_MODELS": str(put_model(tmp_path / "model")),
        "COHORT_MODEL_NAME": "flowers",
    }
    with platform(port, tmp_path, environment, ready="/ping") as server:
        url = f"{server.url}/invocations"
        predicted = httpx.post(url, json=ROWS).json()["predictions"]
        assert [one["label"] for one in predicted] == [0]
        table = httpx.post(url, content="5.1,3.5,1.4,0.2\n", headers={"content-type": "text/csv"})
        assert table.json()["predictions"] == predicted


@pytest.fixture(scope="module", params=["1", "2"])
def hosted(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Cohort]:
    """A multi-model container, with one worker or two, whose models folder is never read."""
    port = free_port()
    environment = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "COHORT_WORKERS": request.param,
        "COHORT_MAX_LOADED_MODELS": "3",
    }
    folder = tmp_path_factory.mktemp("hosted")
    with platform(port, folder, environment, ready="/ping") as server:
        yield server


def load(server: Cohort, name: str, folder: Path | str) -> httpx.Response:
    body = {"model_name": name, "url": str(folder)}
    return httpx.post(f"{server.url}/models", json=body, timeout=60)


def invoke(server: Cohort, name: str) -> httpx.Response:
    target = {"X-Amzn-SageMaker-Target-Model": "flowers.tar.gz"}
    return httpx.post(f"{server.url}/models/{name}/invoke", json=ROWS, headers=target)


def test_models_come_and_go_by_request(hosted: Cohort, tmp_path: Path) -> None:
    """The container starts ready without a model, and stays ready when the last one is gone."""
    assert hosted.get("/models").json() == {"models": []}
    folder = put_model(tmp_path / "model")
    described = {"modelName": "3f2a", "modelUrl": str(folder)}
    assert load(hosted, "3f2a", folder).status_code == 200
    assert load(hosted, "3f2a", folder).status_code == 409
    assert hosted.get("/models").json() == {"models": [described]}
    assert hosted.get("/models/3f2a").json() == described
    for _ in range(4):  # each worker
        assert invoke(hosted, "3f2a").json()["predictions"][0]["label"] == 0
    assert httpx.delete(f"{hosted.url}/models/3f2a").status_code == 200
    for _ in range(4):
        assert invoke(hosted, "3f2a").status_code == 404
    assert httpx.delete(f"{hosted.url}/models/3f2a").status_code == 404
    assert hosted.get("/models/3f2a").status_code == 404
    assert hosted.get("/models").json() == {"models": []}
    assert hosted.get("/ping").status_code == 200


@pytest.mark.parametrize("capability", ["multi-models", "accept-bind-to-port"])
def test_the_image_has_the_labels_that_sagemaker_asks_for(capability: str) -> None:
    """Without them, it refuses the image for endpoints of many models."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"com.amazonaws.sagemaker.capabilities.{capability}=true" in dockerfile


def test_a_model_that_was_unloaded_can_be_loaded_again(hosted: Cohort, tmp_path: Path) -> None:
    """From another folder."""
    for name in ("first", "second"):
        assert load(hosted, "again", put_model(tmp_path / name)).status_code == 200
        assert invoke(hosted, "again").status_code == 200
        assert httpx.delete(f"{hosted.url}/models/again").status_code == 200


def test_a_model_that_does_not_fit_gets_507(hosted: Cohort, tmp_path: Path) -> None:
    """For memory, and for the number of models; SageMaker then unloads another one."""
    large = put_model(tmp_path / "large")
    with (large / "weights.bin").open("wb") as file:
        file.truncate(2**40)  # sparse
    refused = load(hosted, "large", large)
    assert (refused.status_code, refused.json()["code"]) == (507, "OutOfMemory")
    names = ["a", "b", "c"]
    for name in names:
        assert load(hosted, name, put_model(tmp_path / name)).status_code == 200
    assert load(hosted, "d", put_model(tmp_path / "d")).status_code == 507
    for name in names:
        assert httpx.delete(f"{hosted.url}/models/{name}").status_code == 200


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "must have one model"),
        ({"x.onnx": "junk"}, "is text, not ONNX"),
        ({"a.onnx": "1", "b.onnx": "2"}, "has several .onnx files; rename one to model.onnx"),
    ],
)
def test_a_folder_without_a_usable_model_gets_400(
    hosted: Cohort, tmp_path: Path, files: dict[str, str], sentence: str
) -> None:
    """With the reason, and without a trace: the name is free, and the container stays ready."""
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    refused = load(hosted, "bad", tmp_path)
    assert refused.status_code == 400
    assert sentence in refused.json()["error"]
    assert hosted.get("/models/bad").status_code == 404
    assert invoke(hosted, "bad").status_code == 404
    assert hosted.get("/ping").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"model_name": "../x", "url": "/tmp"}, 400, "model_name: a name has at most 128"),
        ({"model_name": "x", "url": "relative"}, 400, "url must be an absolute path"),
        ({"model_name": "x", "url": "/does/not/exist"}, 400, "cannot be read"),
        ({"model_name": "x"}, 400, "'url' must be a text"),
        ({"url": "/tmp"}, 400, "'model_name' must be a text"),
        (["x"], 400, "must be a JSON object"),
        ({"model_name": "x" * 70_000, "url": "/"}, 413, "at most 65536 bytes"),
    ],
)
def test_mistakes_in_a_body_are_named(
    hosted: Cohort, body: object, status: int, sentence: str
) -> None:
    """The name and the address are checked before the disk is read."""
    refused = httpx.post(f"{hosted.url}/models", json=body)
    assert (refused.status_code, sentence in refused.json()["error"]) == (status, True)


def test_the_list_has_pages(tmp_path: Path) -> None:
    """A page has 100 models in the order of their names; the last one has no token."""
    names = [f"m{number:03}" for number in range(250)]
    addresses = tmp_path / ".addresses"
    addresses.mkdir()
    for name in names:
        (addresses / name).symlink_to(f"/opt/ml/models/{name}/model")
    models = MultiModel(tmp_path, cast("ControlPlane", None), None)
    seen: list[str] = []
    sizes, token = [], ""
    while True:
        page, token = asyncio.run(models.page(token))
        seen += [one.name for one in page]
        sizes.append(len(page))
        if not token:
            break
    assert (seen, sizes) == (names, [100, 100, 50])


class SlowPlane:
    """Loads and unloads nothing, and gives way to other tasks. Counts those at once."""

    at_once = most = 0

    async def load(self, name: str) -> None:
        SlowPlane.at_once += 1
        SlowPlane.most = max(SlowPlane.most, SlowPlane.at_once)
        await iterations(10)
        SlowPlane.at_once -= 1

    async def unload(self, name: str) -> None:
        await self.load(name)


def test_unloads_at_once_do_not_remove_what_is_loaded_after_them(tmp_path: Path) -> None:
    """One of them unloads the model; for the others, it is not there."""
    models = MultiModel(tmp_path / "links", cast("ControlPlane", SlowPlane()), None)
    folder = str(put_model(tmp_path / "model"))

    async def exchange() -> None:
        await models.load("a", folder)
        done = await asyncio.gather(
            *(models.unload("a") for _ in range(4)),
            models.load("a", folder),
            models.load("b", folder),
            return_exceptions=True,
        )
        assert done == [None, *[ANY] * 3, None, None]
        assert [type(one) for one in done[1:4]] == [ModelNotFound] * 3
        found, _ = await models.page("")
        assert [one.name for one in found] == ["a", "b"]

    asyncio.run(exchange())


def test_workers_change_a_name_one_after_the_other(tmp_path: Path) -> None:
    """Each worker has its own object; the folder is that of all."""
    folder = str(put_model(tmp_path / "model"))
    SlowPlane.most = 0

    async def exchange() -> None:
        plane = cast("ControlPlane", SlowPlane())
        workers = [MultiModel(tmp_path / "links", plane, None) for _ in range(4)]
        await workers[0].load("a", folder)
        done = await asyncio.gather(*(one.unload("a") for one in workers), return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == [*["ModelNotFound"] * 3, "NoneType"]
        assert SlowPlane.most == 1

    asyncio.run(exchange())
