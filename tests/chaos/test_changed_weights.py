"""External weights of a model that are changed in place, under a running server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import numpy as np
import pytest

from cohort.repository import Manifest, dump_manifest
from cohort.session.digests import hash_file
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

ROWS = 1 << 18
LAST = {"inputs": {"index": [[ROWS - 1]]}}
BEFORE, AFTER = 10.0 * (ROWS - 1), 20.0 * (ROWS - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds models: a table of 1 MiB, which ONNX Runtime maps: 10 times the index."""
    folder = tmp_path_factory.mktemp("changed")
    path = folder / "models" / "table" / "1" / "model.onnx"
    onnx_models.save_with_external_data(onnx_models.table(size=ROWS), path)
    (path.parents[1] / "config.yaml").write_text("providers: [cpu]\n")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    with cohort(folder / "models", folder) as server:
        yield server


@pytest.fixture
def weights(folder: Path, server: Cohort) -> Iterator[Path]:
    """The table's file, restored in the end."""
    weights = folder / "models/table/1/weights.bin"
    good = weights.read_bytes()
    yield weights
    weights.write_bytes(good)
    wait_until(lambda: answer(server) == BEFORE and not reason(server))


def answer(server: Cohort) -> object:
    response = httpx.post(server.url + "/models/table/predict", json=LAST)
    return response.json()["outputs"]["y"][0][0] if response.is_success else response


def reason(server: Cohort) -> str:
    return str(server.get("/models/table/versions/1").json()["reason"])


@contextmanager
def callers(server: Cohort) -> Iterator[list[object]]:
    """Ask for the last row all the while; collects the answers, each as often as it changes."""
    answers: list[object] = []
    over = Event()

    def ask() -> None:
        while not over.is_set():
            found = answer(server)
            if answers[-1:] != [found]:
                answers.append(found)

    thread = Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def doubled(weights: Path) -> bytes:
    return (np.frombuffer(weights.read_bytes(), "f4") * 2).tobytes()


def test_overwritten_weights_are_served_once_they_are_loaded(server: Cohort, weights: Path) -> None:
    """After a change in place, as by `cp`, callers get old answers and then only new ones."""
    content = doubled(weights)
    with callers(server) as answers:
        wait_until(lambda: answers == [BEFORE])
        with weights.open("r+b") as file:
            file.truncate(0)
            file.write(content)
        wait_until(lambda: answers[-1] == AFTER)
    assert answers == [BEFORE, AFTER]


def truncate(weights: Path) -> None:
    os.truncate(weights, 0)


def swap_unpublished(weights: Path) -> None:
    weights.write_bytes(doubled(weights))


@pytest.mark.parametrize(
    ("harm", "says"), [(truncate, "weights.bin"), (swap_unpublished, "is not the file that was")]
)
def test_weights_that_cannot_be_served_are_told(
    server: Cohort, weights: Path, harm: Callable[[Path], None], says: str
) -> None:
    """The loaded model still serves; the version, health and a metric report the fault."""
    good, manifest = weights.read_bytes(), weights.with_name("manifest.json")
    files = {name: hash_file(weights.with_name(name)) for name in ("model.onnx", "weights.bin")}
    manifest.write_bytes(dump_manifest(Manifest(1, files)))
    with callers(server) as answers:
        wait_until(lambda: answers == [BEFORE])
        harm(weights)
        wait_until(lambda: says in reason(server))
        assert any(says in one for one in server.get("/health").json()["problems"])
        assert Scrape(server.url).value("model_outdated", model="table", version="1") == 1
        weights.write_bytes(good)
        wait_until(lambda: not reason(server))
    manifest.unlink()
    assert answers == [BEFORE]


def mapped(server: Cohort) -> set[str]:
    """The inodes of weights that a server has mapped."""
    lines = Path(f"/proc/{server.process.pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if re.search(r"/cache/weights/.*weights\.bin", line)}


def test_processes_share_the_copies(server: Cohort, weights: Path, folder: Path) -> None:
    """Two servers map one file; when one stops, the other keeps its copy and no file stays.

    A server that starts removes the files of a killed one.
    """
    opened = folder / "cache/weights"
    left = opened / "open-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    with cohort(folder / "models", folder) as other:
        # A load that a test before this one has caused may still be under way.
        wait_until(lambda: len(mapped(server)) == 1 and mapped(other) == mapped(server))
        wait_until(lambda: not left.exists())
        wait_until(lambda: len(list(opened.glob("open-*"))) == 2)
        assert other.stop() == 0
    wait_until(lambda: len(list(opened.glob("open-*"))) == 1)
    truncate(weights)
    wait_until(lambda: reason(server))
    assert answer(server) == BEFORE
