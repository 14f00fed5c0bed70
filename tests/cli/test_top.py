"""`cohort top` over a real server."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cohort.cli.options import OK, PROBLEMS
from cohort.cli.top_command.scraped import NotCohort, Scrape, quantile, read_scrape
from cohort.cli.top_command.screen import bars, screen
from cohort.metrics import DURATION_BUCKETS, SIZE_BUCKETS, VersionCounts
from tests.cli.test_cli import run
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort, quick_command
from tests.waiting import PATIENCE, wait_until

Counts = Mapping[tuple[str, ...], VersionCounts]

ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cohort]:
    """A server without other callers."""
    with cohort(MODELS, tmp_path) as started:
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
    """Each version has responses by code, their durations, and the rows of runs."""
    for rows in (1, 2, 3):
        body = {"inputs": {"features": ROW["inputs"]["features"] * rows}}
        httpx.post(f"{server.url}/models/iris/predict", json=body).raise_for_status()
    scrape = read_scrape(httpx.get(f"{server.url}/metrics").text, 0.0)
    counts = scrape.versions["iris", "1"]
    assert counts.codes == {"OK": 3}
    assert counts.variants == {"": 3}
    assert sum(counts.durations) == sum(counts.rows) == 3
    assert counts.rows[:3] == (1, 1, 1)


def test_in_a_terminal_it_goes_on_until_ctrl_c(server: Cohort) -> None:
    """The screen shows the version, and the command ends well."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*quick_command(), "top", server.url, "--every", "0.2"],
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
    """The error is one sentence."""
    done = run("top", "--once", url)
    assert done.exit_code == PROBLEMS
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_a_key_is_asked_for_where_metrics_have_one(tmp_path: Path) -> None:
    """The option sets it."""
    key = "0123456789abcdef0123456789abcdef"
    with cohort(MODELS, tmp_path, metrics_key=key) as server:
        refused = run("top", "--once", server.url)
        assert refused.exit_code == PROBLEMS
        assert "COHORT_METRICS_KEY" in refused.stderr
        assert run("top", "--once", "--every", "0.2", "--key", key, server.url).exit_code == OK


def test_a_server_that_was_started_anew_is_shown_on() -> None:
    """After a restart of the server, `cohort top` continues with counts from zero."""
    history = [
        Scrape(at, {("a", "1"): VersionCounts({"OK": count}, {"": count})}, 0)
        for at, count in ((0.0, 5000), (1.0, 5100), (2.0, 3))
    ]
    shown = io.StringIO()
    Console(file=shown, width=100).print(screen("u", history, ""))
    assert "3 requests/s" in shown.getvalue()


def counted(requests: int, bucket: int, **variants: int) -> VersionCounts:
    """Return counts of `requests` answers in this bucket, in runs of three and four rows."""
    durations, rows = [0] * (len(DURATION_BUCKETS) + 1), [0] * (len(SIZE_BUCKETS) + 1)
    durations[bucket] = requests
    rows[SIZE_BUCKETS.index(4)] = requests
    codes = {"OK": requests - requests // 10, "INTERNAL": requests // 10}
    return VersionCounts(codes, variants, tuple(durations), tuple(rows))


def lines(history: list[Scrape], problem: str = "") -> list[str]:
    """Return the lines of the screen, with each run of blanks as one."""
    shown = io.StringIO()
    Console(file=shown, width=140).print(screen("u", history, problem))
    return [" ".join(line.split()) for line in shown.getvalue().splitlines()]


def test_the_screen_says_what_was_done_between_two_looks() -> None:
    """The headline covers all versions, a row each version; times have a fitting unit."""
    fast, slow, slowest = (DURATION_BUCKETS.index(one) for one in (0.00025, 0.05, 5.0))
    nothing: Counts = {("a", one): VersionCounts() for one in "123"}
    done: Counts = {
        ("a", "1"): counted(20, fast),
        ("a", "2"): counted(200, slow, new=50, old=150),
        ("a", "3"): counted(2, slowest),
    }
    looks = [Scrape(0.0, nothing, 1), Scrape(2.0, done, 7), Scrape(3.0, done, 0)]
    assert lines(looks[:1], "gone")[0] == "u waiting for the next update gone"
    assert lines(looks[:2]) == [
        "u 111 requests/s, p99 50 ms, 7 queued",
        "requests/s █",
        "p99 █",
        "version requests/s failed/s p50 p99 rows/run total variants",
        "a/2 100 10 37.5 ms 49.8 ms ≤ 4 200 new 25%, old 75%",
        "a/1 10 1 175 µs 249 µs ≤ 4 20",
        "a/3 1 0 3.75 s 4.97 s ≤ 4 2",
    ]
    after = lines(looks)
    assert after[0] == "u 0 requests/s, p99 -, 0 queued"
    assert after[1:3] == ["requests/s █▁", "p99 █▁"]


def test_the_busiest_of_many_versions_are_shown() -> None:
    """The number of the others is shown."""
    done: Counts = {(f"m{one}", "1"): counted(one, 3) for one in range(45)}
    shown = lines([Scrape(0.0, dict.fromkeys(done, VersionCounts()), 0), Scrape(1.0, done, 0)])
    assert shown[4].startswith("m44/1 44 ")
    assert shown[-2].startswith("m5/1 5 ")
    assert shown[-1] == "and 5 more"


def test_where_nobody_looks_at_a_terminal_it_goes_on_below(
    server: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Screens follow one another, each with the requests since the one before."""
    waits = iter([6, 1])

    def sleep(_: float) -> None:
        requests = next(waits, None)
        if requests is None:
            raise KeyboardInterrupt
        for _ in range(requests):
            httpx.post(f"{server.url}/models/iris/predict", json=ROW).raise_for_status()

    monkeypatch.setattr("cohort.cli.top_command.command.time.sleep", sleep)
    done = run("top", server.url)
    assert done.exit_code == OK
    totals = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("iris/1")]
    assert totals == ["6", "7"]


def test_a_server_that_is_away_for_a_while_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The problem is shown as long as it lasts."""
    status = 200

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"# TYPE model_queue_requests gauge\nmodel_queue_requests 0\n")

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    statuses = iter([503, 200])
    shown = io.StringIO()
    frames: list[str] = []

    def sleep(_: float) -> None:
        nonlocal status
        frames.append(shown.getvalue()[sum(map(len, frames)) :])
        status = next(statuses, 0)
        if not status:
            raise KeyboardInterrupt

    monkeypatch.setattr("cohort.cli.top_command.command.time.sleep", sleep)
    monkeypatch.setattr(
        "rich.console.Console", partial(Console, file=shown, force_terminal=True, width=160)
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        Thread(target=server.serve_forever).start()
        done = run("top", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.exit_code == OK
    assert ["responded 503 for /metrics" in one for one in frames] == [False, True, False]
    assert "0 requests/s" in frames[-1]


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported, and the connection is closed."""
    monkeypatch.setattr("cohort.cli.top_command.command.MAX_BYTES", 1 << 16)

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"# HELP a b\n" * 1000)

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        Thread(target=server.serve_forever).start()
        done = run("top", "--once", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.exit_code == PROBLEMS
    assert "sends /metrics too slowly, or too much" in " ".join(done.stderr.split())


@pytest.mark.parametrize("text", ["", "<html>", "a 1\n", "model_inference_total{ 1\n"])
def test_what_is_no_cohort_is_said_so(text: str) -> None:
    """Any other answer raises NotCohort."""
    with pytest.raises(NotCohort):
        read_scrape(text, 0.0)


@given(st.lists(st.floats(0, 9.9), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_within_its_bucket(values: list[float], share: float) -> None:
    """Ten buckets cover values from 0 to 10."""
    bounds = tuple(float(one) for one in range(1, 11))
    counts = [0] * 11
    for value in values:
        counts[int(value)] += 1
    exact = sorted(values)[max(0, int(len(values) * share + 0.9999) - 1)]
    found = quantile(share, tuple(counts), bounds)
    assert found is not None
    assert abs(found - exact) <= 1.0 + 1e-6


def test_nothing_has_no_quantile() -> None:
    """An empty histogram has no quantile and no bar."""
    assert quantile(0.5, (0, 0), (1.0,)) is None
    assert quantile(0.5, (0, 1, 5), (1.0, 2.0)) == 2.0
    assert bars([]) == ""
    assert bars([0.0, 0.0]) == "▁▁"
    assert bars([0.0, 5.0, 10.0]) == "▁▄█"
