"""How many threads a run takes, and at what priority they run."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.errors import LoadFailed
from app.model_config import ModelConfig
from app.profiling import Threads, finding, threads
from app.profiling.threads import compare, counts_up_to, find_threads
from app.registry.catalog import Source
from app.registry.loading import ready
from app.session import Provider, Session, SessionOptions, open_session
from app.session.pool import NICENESS, at_lower_priority
from app.tensors import Array, Arrays
from tests import onnx_models

CHAIN = (Provider("cpu"),)
TWO = Threads(2, 2, 1.7, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.mlp(), tmp_path / "mlp" / "1" / "model.onnx")


def sleeping(seconds: float, *, in_turn: bool = False) -> Callable[[Arrays], list[Array]]:
    """A run that takes `seconds`; `in_turn` lets only one go at once."""
    turn = threading.Lock()

    def run(feeds: Arrays) -> list[Array]:
        if in_turn:
            with turn:
                time.sleep(seconds)
        else:
            time.sleep(seconds)
        return []

    return run


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(2, [2]), (3, [3, 2]), (4, [4, 2]), (8, [8, 2]), (16, [16, 4, 2]), (64, [64, 16, 4, 2])],
)
def test_all_cores_are_tried_first_then_fewer(cores: int, counts: list[int]) -> None:
    """By quarters, and two at last."""
    assert counts_up_to(cores) == counts


def test_more_threads_are_chosen_where_they_gain_alone_and_cost_nothing_at_once() -> None:
    """What was measured of them is told, whatever is chosen."""
    chosen = compare(sleeping(0.02), sleeping(0.005), {}, 4, 2)
    assert (chosen.chosen, chosen.tried) == (4, 4)
    assert chosen.alone > 1.2
    assert chosen.at_once > 1.2


def test_one_thread_stays_where_a_lone_run_gains_little() -> None:
    """And runs at once are not even tried."""
    assert compare(sleeping(0.005), sleeping(0.02), {}, 4, 2).chosen == 1
    assert compare(sleeping(0.005), sleeping(0.02), {}, 4, 2).at_once == 0


def test_one_thread_stays_where_runs_at_once_would_lose() -> None:
    """A lone caller's gain must not be paid for by everyone under load."""
    found = compare(sleeping(0.02), sleeping(0.01, in_turn=True), {}, 2, 8)
    assert found.chosen == 1
    assert found.alone > 1.2
    assert 0 < found.at_once < 0.95


def test_short_runs_are_not_tried(path: Path) -> None:
    """Nor is anything on a GPU, or on a single core: the model is not even opened again."""

    def reopen(count: int) -> Session:
        raise AssertionError

    assert find_threads(open_session(path, chain=CHAIN), 0.0001, reopen) == Threads()


def test_model_that_does_not_open_again_keeps_one_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, say; it serves all the same."""

    def reopen(count: int) -> Session:
        raise LoadFailed("no memory")

    monkeypatch.setattr(threads, "cores", lambda: 2)
    assert find_threads(open_session(path, chain=CHAIN), 1.0, reopen) == Threads()


def test_lower_priority_is_handed_on_and_errors_come_back() -> None:
    """A thread started inside inherits it; the caller's own stays as it is."""

    def ask() -> int:
        found: list[int] = []
        inner = threading.Thread(target=lambda: found.append(_niceness()))
        inner.start()
        inner.join()
        return found[0]

    before = _niceness()
    assert at_lower_priority(ask) == (NICENESS if sys.platform == "linux" else before)
    assert _niceness() == before
    with pytest.raises(ZeroDivisionError):
        at_lower_priority(lambda: 1 // 0)


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux only")
def test_the_runtimes_own_threads_give_way_to_all_others(path: Path) -> None:
    """Opened with three threads, a session brings two of its own, at the lower priority."""
    before = set(os.listdir("/proc/self/task"))
    session = open_session(path, chain=CHAIN, options=SessionOptions(intra_op_threads=3))
    own = set(os.listdir("/proc/self/task")) - before
    niceness = [os.getpriority(os.PRIO_PROCESS, int(one)) for one in own]
    assert len(niceness) >= 2  # the thread that opened it may not be gone yet
    assert set(niceness) == {NICENESS}
    session.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The threads of every session that a load opens, where two are found to be best."""
    asked: list[int | None] = []

    def watched(path: Path, *, options: SessionOptions, **others: object) -> Session:
        asked.append(options.intra_op_threads)
        return open_session(path, options=options, **others)  # type: ignore[arg-type]

    monkeypatch.setattr("app.registry.loading.open_session", watched)
    monkeypatch.setattr(finding, "find_threads", lambda *_: TWO)
    return asked


def test_load_opens_the_model_with_the_threads_chosen(
    path: Path, tmp_path: Path, opened: list[int | None]
) -> None:
    """The choice is kept with the profile, so that a later start measures nothing."""
    source = Source(path, "", ModelConfig(providers=CHAIN))
    first, second = ready(source, tmp_path / "cache"), ready(source, tmp_path / "cache")
    assert first.found.threads == second.found.threads == TWO
    assert second.found.kept
    assert opened == [None, 2, None, 2]


def test_a_number_in_the_config_is_what_is_opened(path: Path, opened: list[int | None]) -> None:
    """Nothing else is tried."""
    config = ModelConfig(providers=CHAIN, session=SessionOptions(intra_op_threads=1))
    assert ready(Source(path, "", config), None).found.threads == Threads()
    assert opened == [1]
