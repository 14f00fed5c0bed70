"""`cohort top` over a real server."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.cli.options import OK, PROBLEMS
from app.cli.top_command.scraped import NotCohort, Scrape, quantile, read_scrape
from app.cli.top_command.screen import bars, screen
from app.metrics import VersionCounts
from tests.cli.test_cli import run
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort
from tests.waiting import PATIENCE, wait_until

ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cohort]:
    """A server that nobody else asks."""
    with cohort(MODELS, tmp_path, inspection_seconds=0) as started:
        yield started


def test_it_counts_what_the_server_does(server: Cohort) -> None:
    """Successes and failures, and all that were counted before."""
    for _ in range(7):
        httpx.post(f"{server.url}/models/iris/predict", json=ROW).raise_for_status()
    httpx.post(f"{server.url}/models/iris/predict", json={"inputs": {"features": [[1]]}})
    done = run("top", "--once", "--every", "0.2", server.url)
    assert done.exit_code == OK, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("iris/1")]
    assert row[1] == "0"
    assert row[-1] == "8"


def test_its_numbers_are_those_of_the_metrics(server: Cohort) -> None:
    """Of each version: responses by code, how long they took, and the rows of runs."""
    for rows in (1, 2, 3):
        body = {"inputs": {"features": ROW["inputs"]["features"] * rows}}
        httpx.post(f"{server.url}/models/iris/predict", json=body).raise_for_status()
    scrape = read_scrape(httpx.get(f"{server.url}/metrics").text, 0.0)
    counts = scrape.versions["iris", "1"]
    assert counts.codes == {"OK": 3}
    assert sum(counts.durations) == sum(counts.rows) == 3
    assert counts.rows[:3] == (1, 1, 1)


def test_in_a_terminal_it_goes_on_until_ctrl_c(server: Cohort) -> None:
    """The screen shows the version, and the command ends well."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "top", server.url, "--every", "0.2"],
        cwd=ROOT,
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(child)
    os.set_blocking(parent, False)
    seen = b""

    def shown() -> bool:
        nonlocal seen
        httpx.post(f"{server.url}/models/iris/predict", json=ROW)
        with suppress(BlockingIOError):
            seen += os.read(parent, 1 << 16)
        return b"iris/1" in seen and b"requests/s" in seen

    wait_until(shown)
    process.send_signal(2)
    assert process.wait(PATIENCE) == 0
    os.close(parent)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://x", "http://", "nowhere.invalid"])
def test_a_server_that_is_not_there_is_named(url: str) -> None:
    """In one sentence."""
    done = run("top", "--once", url)
    assert done.exit_code == PROBLEMS
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_a_key_is_asked_for_where_metrics_have_one(tmp_path: Path) -> None:
    """And is taken from the option."""
    key = "0123456789abcdef0123456789abcdef"
    with cohort(MODELS, tmp_path, inspection_seconds=0, metrics_key=key) as server:
        refused = run("top", "--once", server.url)
        assert refused.exit_code == PROBLEMS
        assert "COHORT_METRICS_KEY" in refused.stderr
        assert run("top", "--once", "--every", "0.2", "--key", key, server.url).exit_code == OK


def test_a_server_that_was_started_anew_is_shown_on() -> None:
    """Its counts begin at nothing again."""
    history = [
        Scrape(at, {("a", "1"): VersionCounts({"OK": count}, {"": count})}, 0)
        for at, count in ((0.0, 5000), (1.0, 5100), (2.0, 3))
    ]
    shown = io.StringIO()
    Console(file=shown, width=100).print(screen("u", history, ""))
    assert "3 requests/s" in shown.getvalue()


@pytest.mark.parametrize("text", ["", "<html>", "a 1\n", "model_inference_total{ 1\n"])
def test_what_is_no_cohort_is_said_so(text: str) -> None:
    """Whatever it answers."""
    with pytest.raises(NotCohort):
        read_scrape(text, 0.0)


@given(st.lists(st.floats(0, 9.9), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_within_its_bucket(values: list[float], share: float) -> None:
    """Of values from 0 to 10 in ten buckets."""
    bounds = tuple(float(one) for one in range(1, 11))
    counts = [0] * 11
    for value in values:
        counts[int(value)] += 1
    exact = sorted(values)[max(0, int(len(values) * share + 0.9999) - 1)]
    found = quantile(share, tuple(counts), bounds)
    assert found is not None
    assert abs(found - exact) <= 1.0 + 1e-6


def test_nothing_has_no_quantile() -> None:
    """And no bar."""
    assert quantile(0.5, (0, 0), (1.0,)) is None
    assert bars([]) == ""
    assert bars([0.0, 0.0]) == "▁▁"
    assert bars([0.0, 5.0, 10.0]) == "▁▄█"
