"""A models folder that disappears or loses content, under a running server."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.callers import callers, problem, put, wait_for_no_problem
from tests.chaos.namespaces import inside, mounted
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder that faults come to and leave."""
    folder = tmp_path_factory.mktemp("folder") / "models"
    put(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, cache: Path) -> Iterator[Cohort]:
    """Serves it."""
    with cohort(folder, folder.parent, cache=cache) as server:
        yield server


def move_away(models: Path) -> Callable[[], object]:
    away = models.rename(models.with_name("away"))
    return lambda: away.rename(models)


def empty(models: Path) -> Callable[[], object]:
    kept = (models / "times").rename(models.with_name("kept"))
    return lambda: kept.rename(models / "times")


def ask_for_another_version(models: Path) -> Callable[[], object]:
    config = models / "times/config.yaml"
    before = config.read_text() if config.exists() else ""
    config.write_text("versions: [9]\n")
    return lambda: config.write_text(before)


def truncate(models: Path) -> Callable[[], object]:
    file = models / "times/1/model.onnx"
    content = file.read_bytes()
    os.truncate(file, 0)
    return lambda: file.write_bytes(content)


def remove_the_version(models: Path) -> Callable[[], object]:
    kept = (models / "times/1").rename(models.with_name("kept"))
    return lambda: kept.rename(models / "times/1")


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
    folder: Path, server: Cohort, trouble: Callable[[Path], Callable[[], object]], says: str
) -> None:
    """Loaded models still serve; health and a metric report the fault until it is fixed."""
    with callers(server) as heard:
        mend = trouble(folder)
        wait_until(problem(server, says))
        assert Scrape(server.url).value("models_folder_problems") >= 1
        heard.more()
        mend()
        wait_until(lambda: not problem(server, says)())
        heard.more()
        server.wait_for("/health/ready")
    assert set(heard.statuses) == {"200"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces")
def test_a_disk_that_is_unmounted_serves_on(models: Path, tmp_path: Path, cache: Path) -> None:
    """The folder is readable and empty, on another file system: no model is taken out."""
    put(models)
    at = tmp_path / "mounted"
    with (
        cohort(at, tmp_path, under=mounted(at, f'mount --bind "{models}" "$0"'), cache=cache) as (
            server
        ),
        callers(server) as heard,
    ):
        heard.more()
        inside(server, "umount", "--lazy", str(at))
        wait_until(problem(server, "has no model, and had 1"))
        heard.more()
        put(models, version=2)
        inside(server, "mount", "--bind", str(models), str(at))
        heard.more(of=2)
        wait_for_no_problem(server)
    assert set(heard.statuses) == {"200"}


def test_a_version_that_was_never_there_is_unavailable_not_unknown(
    folder: Path, server: Cohort
) -> None:
    """A model whose config names only versions that are not there answers 503 with the reason."""
    put(folder, "other", config="versions: [9]\n")
    server.wait_for("/models/other/versions/9")
    body = {"inputs": {"x": [[1, 2, 3]]}}
    assert httpx.post(server.url + "/models/other/predict", json=body).status_code == 503
    told = httpx.get(server.url + "/models/other/versions/9").json()
    assert told["state"] == "UNAVAILABLE"
    assert told["reason"] == "it is not on disk; available: 1"
    shutil.rmtree(folder / "other")


def test_a_model_that_is_taken_out_is_gone(folder: Path, server: Cohort) -> None:
    """The model is unknown soon after its folder was removed; other folders stay."""
    put(folder, "gone")
    server.wait_for("/models/gone")
    shutil.rmtree(folder / "gone")
    server.wait_for("/models/gone", 404)
    server.wait_for("/health/ready")
