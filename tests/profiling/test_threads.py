"""The number of threads of a run, and their priority."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from cohort.batching import RunFeeds
from cohort.errors import InferenceFailed, LoadFailed
from cohort.onnx_engine import VersionOpener
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.profiling import Threads, Trial, result, small_enough, threads
from cohort.profiling.runs import FREE_RUNS
from cohort.profiling.threads import TURNS, counts_up_to, find_threads, measure_gain
from cohort.registry import Source
from cohort.repository import Manifest, ModelConfig, Published
from cohort.session import Opener, Provider, Session, SessionOptions, open_session
from cohort.session.thread_priority import NICENESS, with_low_priority
from cohort.tensors import Array, Arrays, TensorSpec
from tests import onnx_models

CHAIN = (Provider("cpu"),)
PROMISE = Published(Manifest(1))


def promised(*_: Any, **__: Any) -> Published:
    return PROMISE


TWO = Threads(2, 2, 1.7)
COMPARING = ("cohort.onnx_engine.examples", "cohort.onnx_engine.measurement")
"""The modules that compare a session with the examples of a manifest."""

TRIAL = Trial((TensorSpec("x", "FP32", ("N", 4)),), 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.mlp(), tmp_path / "mlp" / "1" / "model.onnx")


class Timed:
    """Runs on a simulated clock, and a record of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[float] = []

    def takes(self, seconds: float) -> RunFeeds:
        def run(feeds: Arrays) -> list[Array]:
            self.now += seconds
            self.made.append(seconds)
            return []

        return run

    def gain(self, one: float, more: float) -> float:
        """Return the gain of runs that take `more` seconds over runs that take `one`."""
        return measure_gain(self.takes(one), self.takes(more), {}, one, lambda: self.now)


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(2, [2]), (3, [3, 2]), (4, [4, 2]), (8, [8, 2]), (16, [16, 4, 2]), (64, [64, 16, 4, 2])],
)
def test_all_cores_are_tried_first_then_fewer(cores: int, counts: list[int]) -> None:
    """The number falls by quarters, and ends at two."""
    assert counts_up_to(cores) == counts


def test_gain_of_more_threads_is_that_of_exclusive_runs() -> None:
    """The gain is how many times as fast they are as runs on one thread, each for several turns."""
    timed = Timed()
    assert timed.gain(0.02, 0.005) == pytest.approx(4)
    assert [one for one, _ in groupby(timed.made)] == [0.02, 0.005] * TURNS
    assert timed.gain(0.005, 0.02) == pytest.approx(0.25)


def test_long_runs_are_not_repeated() -> None:
    """Their time on one thread is known; one run on more threads gives the ratio."""
    timed = Timed()
    assert timed.gain(2.0, 0.2) == pytest.approx(10)
    assert timed.made == [0.2]


@pytest.mark.parametrize(("gains", "chosen", "tried"), [([3.0], 8, 8), ([0.9, 1.5], 2, 2)])
def test_the_first_number_of_threads_that_gains_is_chosen(
    path: Path, monkeypatch: pytest.MonkeyPatch, gains: list[float], chosen: int, tried: int
) -> None:
    """On eight cores eight are tried, then two."""
    session, left = open_session(path, chain=CHAIN), iter(gains)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads, "measure_gain", lambda *_: next(left))
    found = find_threads(
        session, TRIAL, 1.0, lambda count: open_session(path, chain=CHAIN, exclusive_threads=count)
    )
    assert found == Threads(chosen, tried, gains[-1])


def test_one_thread_stays_where_none_gains(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last measurement is still reported."""
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads, "measure_gain", lambda *_: 1.05)
    session = open_session(path, chain=CHAIN)
    found = find_threads(
        session, TRIAL, 1.0, lambda count: open_session(path, chain=CHAIN, exclusive_threads=count)
    )
    assert found == Threads(1, 2, 1.05)


def test_large_models_are_not_opened_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files in the version's folder count; an unreadable one counts as too large."""
    (tmp_path / "model.onnx").write_bytes(bytes(600))
    assert small_enough(tmp_path / "model.onnx")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.bin").write_bytes(bytes(600))
    monkeypatch.setattr(threads, "MAX_VERSION_BYTES", 5000)
    (tmp_path / "weights" / "b.bin").write_bytes(bytes(5000))
    assert not small_enough(tmp_path / "model.onnx")
    assert not small_enough(tmp_path / "gone" / "model.onnx")


def test_short_runs_are_not_tried(path: Path) -> None:
    """Runs on a GPU or a single core are not tried either: the model is not opened again."""

    def reopen(count: int) -> Session:
        raise AssertionError

    assert find_threads(open_session(path, chain=CHAIN), TRIAL, 0.0001, reopen) == Threads()


def test_model_that_does_not_open_again_keeps_one_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may be missing; the model still serves."""

    def reopen(count: int) -> Session:
        raise LoadFailed("no memory")

    monkeypatch.setattr(threads, "cores", lambda: 2)
    assert find_threads(open_session(path, chain=CHAIN), TRIAL, 1.0, reopen) == Threads()


def test_low_priority_is_handed_on_and_errors_come_back() -> None:
    """A thread started inside inherits it; the caller's own stays as it is."""

    def ask() -> int:
        found: list[int] = []
        inner = threading.Thread(target=lambda: found.append(_niceness()))
        inner.start()
        inner.join()
        return found[0]

    before = _niceness()
    assert with_low_priority(ask) == (NICENESS if sys.platform == "linux" else before)
    assert _niceness() == before
    with pytest.raises(ZeroDivisionError):
        with_low_priority(lambda: 1 // 0)


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux only")
def test_the_runtimes_own_threads_have_the_priority_of_runs(path: Path) -> None:
    """Opened with three threads, a session has two of them, which give way to the loop."""
    before = set(Path("/proc/self/task").iterdir())
    session = open_session(path, chain=CHAIN, options=SessionOptions(intra_op_threads=3))
    own = set(Path("/proc/self/task").iterdir()) - before
    niceness = [os.getpriority(os.PRIO_PROCESS, int(one.name)) for one in own]
    assert len(niceness) >= 2  # the thread that opened it may not be gone yet
    assert set(niceness) == {NICENESS}
    session.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each session that is opened, its threads for exclusive runs; two are the best."""
    asked: list[int] = []

    class Watched(Opener):
        def open(self, exclusive_threads: int = 0) -> Session:
            asked.append(exclusive_threads)
            return super().open(exclusive_threads)

    monkeypatch.setattr("cohort.onnx_engine.opening.Opener", Watched)
    monkeypatch.setattr(result, "may_pay", lambda *_: True)
    monkeypatch.setattr(result, "find_threads", lambda *_: TWO)
    return asked


def measured(source: Source, cache: Path | None) -> PreparedVersion:
    """Load a version, and measure in full what the load left out."""
    prepared = prepare_version(source, VersionOpener(cache))
    if prepared.profile_result.complete:
        return prepared
    assert prepared.measurement is not None
    found = prepared.measurement.fully(FREE_RUNS)
    return prepared.profiled(found, prepared.measurement.open_exclusive(found, FREE_RUNS.of))


def test_model_is_opened_once_more_for_lone_runs(
    path: Path, tmp_path: Path, opened: list[int]
) -> None:
    """The choice is kept with the profile, so that a later start measures nothing."""
    source = Source(path, "", ModelConfig(providers=CHAIN))
    first = measured(source, tmp_path / "cache")
    assert opened == [0, 2]
    second = prepare_version(source, VersionOpener(tmp_path / "cache"))
    assert first.profile_result.threads == second.profile_result.threads == TWO
    assert second.profile_result.kept
    assert opened == [0, 2, 0, 2]
    assert first.exclusive is not None
    first.close()
    with pytest.raises(InferenceFailed):
        first.exclusive.run({"x": np.ones((1, 4), "f4")})


def test_load_leaves_threads_to_an_idle_moment(path: Path, opened: list[int]) -> None:
    """Other loads, and requests, have the cores that they would be tried on."""
    found = prepare_version(Source(path, "", ModelConfig(providers=CHAIN)), VersionOpener(None))
    assert not found.profile_result.complete
    assert found.profile_result.profile.seconds
    assert opened == [0]


def test_a_number_in_the_config_is_what_every_run_gets(path: Path, opened: list[int]) -> None:
    """Nothing else is tried."""
    config = ModelConfig(providers=CHAIN, session=SessionOptions(intra_op_threads=1))
    found = prepare_version(Source(path, "", config), VersionOpener(None))
    assert found.profile_result.complete
    assert found.profile_result.threads == Threads()
    assert found.exclusive is None
    assert opened == [0]


def test_lone_sessions_answers_are_compared_with_the_examples(
    path: Path, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go to callers as well."""
    compared: list[Session] = []
    monkeypatch.setattr("cohort.onnx_engine.opening.read_published", promised)
    monkeypatch.setattr("cohort.onnx_engine.opening.verify_digests", lambda *_: None)
    for module in COMPARING:
        monkeypatch.setattr(
            f"{module}.compare_examples", lambda session, run, manifest: compared.append(session)
        )
    found = measured(Source(path, "", ModelConfig(providers=CHAIN)), None)
    assert compared == [found.session, found.exclusive]


@pytest.mark.parametrize("step", ["Opener.open", "compare_examples"])
def test_version_serves_without_a_second_session(
    path: Path, opened: list[int], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """If it cannot be opened, or breaks its promise, exclusive runs use the first session."""
    from cohort.onnx_engine import opening

    monkeypatch.setattr(opening, "read_published", promised)
    monkeypatch.setattr(opening, "verify_digests", lambda *_: None)
    modules = COMPARING if step == "compare_examples" else ("cohort.onnx_engine.opening",)
    real, calls = attrgetter(step)(import_module(modules[0])), []

    def fail_the_second_time(*arguments: Any, **named: Any) -> Any:
        calls.append(named)
        if len(calls) == 2:
            raise LoadFailed("no memory")
        return real(*arguments, **named)

    for module in modules:
        monkeypatch.setattr(f"{module}.{step}", fail_the_second_time)
    with capture_logs() as logs:
        found = measured(Source(path, "", ModelConfig(providers=CHAIN)), None)
    assert found.exclusive is None
    assert found.session.run({"x": np.ones((1, 4), "f4")})
    assert [one["reason"] for one in logs if "exclusive runs" in one["event"]] == ["no memory"]
