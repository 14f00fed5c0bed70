"""A models folder that goes away, or says less than it did, under a running server."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from tests.e2e.processes import MODELS, Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

FLOWER = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    shutil.copytree(MODELS / "iris", folder / "iris")
    return folder


@contextmanager
def callers(server: Cohort) -> Iterator[Counter[int]]:
    """Ask for predictions all the while; counts the statuses."""
    statuses: Counter[int] = Counter()
    over = Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url) as client:
            while not over.is_set():
                statuses[client.post("/models/iris/predict", json=FLOWER).status_code] += 1

    thread = Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        over.set()
        thread.join()


def problem(server: Cohort, words: str) -> Callable[[], bool]:
    """Whether /health names a problem with these words."""
    return lambda: any(words in one for one in httpx.get(server.url + "/health").json()["problems"])


def move_away(models: Path) -> Callable[[], object]:
    away = models.rename(models.with_name("away"))
    return lambda: away.rename(models)


def empty(models: Path) -> Callable[[], object]:
    kept = (models / "iris").rename(models.with_name("kept"))
    return lambda: kept.rename(models / "iris")


def ask_for_another_version(models: Path) -> Callable[[], object]:
    config = models / "iris/config.yaml"
    before = config.read_text() if config.exists() else ""
    config.write_text("versions: [9]\n")
    return lambda: config.write_text(before)


def truncate(models: Path) -> Callable[[], object]:
    file = models / "iris/1/model.onnx"
    content = file.read_bytes()
    os.truncate(file, 0)
    return lambda: file.write_bytes(content)


def remove_the_version(models: Path) -> Callable[[], object]:
    kept = (models / "iris/1").rename(models.with_name("kept"))
    return lambda: kept.rename(models / "iris/1")


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (move_away, "folder not found"),
        (empty, "has no model, and had 1"),
        (ask_for_another_version, "version 9 not found"),
        (truncate, "its model.onnx is empty"),
        (remove_the_version, "has no version"),
    ],
)
def test_callers_notice_nothing(
    models: Path, tmp_path: Path, trouble: Callable[[Path], Callable[[], object]], says: str
) -> None:
    """What is loaded serves on; health and a metric say what is wrong, until it is mended."""
    with cohort(models, tmp_path) as server, callers(server) as statuses:
        mend = trouble(models)
        wait_until(problem(server, says), seconds=30)
        assert Scrape(server.url).value("models_folder_problems") >= 1
        served = statuses[200]
        wait_until(lambda: statuses[200] > served + 50, seconds=30)
        mend()
        wait_until(lambda: not problem(server, says)(), seconds=30)
        served = statuses[200]
        wait_until(lambda: statuses[200] > served + 50, seconds=30)
        server.wait_for("/health/ready")
    assert set(statuses) == {200}


def test_a_version_that_was_never_there_is_unavailable_not_unknown(
    models: Path, tmp_path: Path
) -> None:
    """A model whose config names only versions that are not there answers 503 with the reason."""
    (models / "iris/config.yaml").write_text("versions: [9]\n")
    with cohort(models, tmp_path) as server:
        refused = httpx.post(server.url + "/models/iris/predict", json=FLOWER)
        assert refused.status_code == 503
        told = httpx.get(server.url + "/models/iris/versions/9").json()
        assert told["state"] == "UNAVAILABLE"
        assert told["reason"] == "it is not on disk; available: 1"


def test_a_model_that_is_taken_out_is_gone(models: Path, tmp_path: Path) -> None:
    """Its folder removed, beside others that stay, the model is unknown soon after."""
    shutil.copytree(MODELS / "digits", models / "digits")
    with cohort(models, tmp_path) as server:
        shutil.rmtree(models / "iris")
        server.wait_for("/models/iris", 404)
        assert httpx.post(server.url + "/models/iris/predict", json=FLOWER).status_code == 404
        server.wait_for("/health/ready")
