"""A models folder on a file system that fails: EIO, ESTALE, and one whose server is gone."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.chaos.callers import Callers, callers, problem, put
from tests.chaos.namespaces import mounted
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/fuse")


@dataclass
class Faulty:
    """A server whose models folder fails with the error in `control`; and its callers."""

    server: Cohort
    models: Path
    control: Path
    heard: Callers


def on_faulty_disk(models: Path, at: Path, control: Path) -> Sequence[str]:
    """Return a command for a server that sees `models` at `at`, with the errors in `control`."""
    serve = f'"{sys.executable}" -m tests.chaos.faulty "{models}" "$0" "{control}" &'
    return mounted(at, f'{serve} until mountpoint -q "$0"; do kill -0 $!; sleep 0.05; done')


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    models, control = folder / "models", folder / "control"
    control.touch()
    put(models)
    put(models, "other")
    at = folder / "mounted"
    with (
        cohort(at, folder, under=on_faulty_disk(models, at, control), cache=cache) as server,
        callers(server) as heard,
    ):
        heard.more()
        yield Faulty(server, models, control, heard)
        assert set(heard.statuses) == {"200"}


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "EACCES"])
def test_what_cannot_be_looked_at_serves_on(faulty: Faulty, error: str) -> None:
    """No model is unloaded, whatever the error; the problem is reported until the error ends."""
    words = os.strerror(getattr(errno, error))
    faulty.control.write_text(error)
    wait_until(problem(faulty.server, words))
    assert Scrape(faulty.server.url).value("models_folder_problems") >= 1
    faulty.heard.more()
    faulty.control.write_text("")
    wait_until(lambda: not problem(faulty.server, words)())
    faulty.server.wait_for("/health/ready")
    faulty.heard.more()


def test_an_edit_beside_the_error_is_followed_once_it_is_over(faulty: Faulty) -> None:
    """A version that was added during the error is served, and a removed model is gone."""
    faulty.control.write_text("EIO")
    wait_until(problem(faulty.server, "Input/output"))
    put(faulty.models, version=2)
    shutil.rmtree(faulty.models / "other")
    faulty.heard.more()
    assert set(faulty.heard.versions) == {1}
    faulty.control.write_text("")
    faulty.heard.more(of=2)
    faulty.server.wait_for("/models/other", 404)


def test_a_version_that_cannot_be_read_comes_up_once_it_can(faulty: Faulty) -> None:
    """Its content gives EIO, which passes: it is tried again without being touched."""
    faulty.control.write_text("EIO read")
    put(faulty.models, version=3)
    wait_until(lambda: "Input/output" in httpx.get(faulty.server.url + "/health").text)
    faulty.heard.more()
    assert not faulty.heard.versions[3]
    faulty.control.write_text("")
    faulty.heard.more(of=3)


def test_a_file_system_that_is_gone_serves_on(faulty: Faulty) -> None:
    """Once its server is killed, every access fails (ENOTCONN), and models still serve."""
    children = Path(f"/proc/{faulty.server.process.pid}/task/{faulty.server.process.pid}/children")
    for child in map(int, children.read_text().split()):
        if b"tests.chaos.faulty" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
    wait_until(problem(faulty.server, "Transport endpoint"))
    faulty.heard.more()
    assert Scrape(faulty.server.url).value("models_folder_problems") >= 1


def test_a_file_system_that_never_answers_holds_up_neither_callers_nor_the_stop(
    models: Path, tmp_path: Path, cache: Path
) -> None:
    """It behaves like a "hard" mount whose server does not answer."""
    put(models)
    control, at = tmp_path / "control", tmp_path / "mounted"
    control.touch()
    with cohort(at, tmp_path, under=on_faulty_disk(models, at, control), cache=cache) as server:
        with callers(server) as heard:
            control.write_text("HANG")
            heard.more(200)
        assert set(heard.statuses) == {"200"}
        assert server.stop() == 0
