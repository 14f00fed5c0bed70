"""Measurements of a model, kept between starts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cohort.batching import BatchPolicy, Padding
from cohort.errors import InferenceFailed
from cohort.onnx_engine import VersionOpener
from cohort.onnx_engine.preparation import prepare_version
from cohort.profiling import (
    ConcurrentRuns,
    ProfileResult,
    Store,
    best_concurrency,
    find_trial,
    key_for,
    measure_concurrency,
    profile_briefly,
    profile_model,
)
from cohort.registry import Source
from cohort.repository import ModelConfig
from cohort.session import Opener, Provider, Session, SessionOptions, identity, open_session
from cohort.tensors import Array
from tests import onnx_models
from tests.waiting import PATIENCE

CHAIN = (Provider("cpu"),)
PLAIN, DEFAULTS = BatchPolicy(), SessionOptions()
ROOT = Path(__file__).parents[2]


class Counted:
    """A session that counts its runs."""

    def __init__(self, session: Session) -> None:
        self._session, self.runs = session, 0
        self.inputs, self.outputs = session.inputs, session.outputs
        self.placement, self.device = session.placement, session.device
        self.rows = session.rows

    def run(self, feeds: Mapping[str, Array], control: Any = None) -> list[Array]:
        self.runs += 1
        return self._session.run(feeds, control)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.mlp(), tmp_path / "mlp" / "1" / "model.onnx")


@pytest.fixture
def session(path: Path) -> Session:
    return open_session(path, chain=CHAIN)


def key_of(
    path: Path,
    session: Session,
    batching: BatchPolicy = PLAIN,
    options: SessionOptions = DEFAULTS,
    chain: tuple[Provider, ...] = CHAIN,
) -> dict[str, str]:
    return key_for(Opener(path, chain=chain, options=options), session, batching)


def find(
    path: Path,
    session: Session,
    store: Store,
    batching: BatchPolicy = PLAIN,
    *,
    fresh: bool = False,
    briefly: bool = False,
) -> tuple[ProfileResult, int]:
    """Return the profile, and in how many runs it was measured."""
    trial = find_trial(session.run, session.inputs)
    counted: Any = Counted(session)
    opener = Opener(path, chain=CHAIN)
    if briefly:
        found = profile_briefly(opener, counted, trial, batching, store, seconds=PATIENCE)
        return found, counted.runs
    return profile_model(opener, counted, trial, batching, store, fresh=fresh), counted.runs


def test_kept_profile_takes_no_run(tmp_path: Path, path: Path, session: Session) -> None:
    """A second start recalls the times, the choice and the verdicts of the first."""
    store = Store(tmp_path / "cache")
    first, runs = find(path, session, store)
    second, later = find(path, session, store)
    assert (runs > 0, later, first.kept, second.kept) == (True, 0, False, True)
    assert second == replace(first, kept=True)


class SlowToChange(Counted):
    """A session on a device that needs 5 ms for another number of rows than before."""

    def __init__(self, session: Session, device: str) -> None:
        super().__init__(session)
        self.device = device
        self._rows = 0

    def run(self, feeds: Mapping[str, Array], control: Any = None) -> list[Array]:
        before, self._rows = self._rows, len(feeds["x"])
        if self._rows != before:
            ready = time.perf_counter() + 0.005
            while time.perf_counter() < ready:
                pass
        return super().run(feeds, control)


@pytest.mark.parametrize("briefly", [False, True])
def test_what_a_change_of_rows_costs_is_measured_and_kept(
    tmp_path: Path, path: Path, session: Session, briefly: bool
) -> None:
    """Every device but the CPU is measured at load and in full; smaller runs are then filled up."""
    trial, opener = find_trial(session.run, session.inputs), Opener(path, chain=CHAIN)
    profile = partial(profile_briefly, seconds=PATIENCE) if briefly else profile_model
    for device, filled in [("cpu", False), ("cuda:0", True)]:
        slow: Any = SlowToChange(session, device)
        store = Store(tmp_path / device)
        found = profile(opener, slow, trial, PLAIN, store)
        assert (found.profile.change_seconds >= 0.004, found.complete) == (filled, True)
        kept = profile(opener, slow, trial, PLAIN, store)
        assert kept == replace(found, kept=True)
        if found.profile.max_batch_size > 1:
            assert (found.profile.filled_rows > 1) == filled


def test_fresh_measures_although_a_profile_is_kept(
    tmp_path: Path, path: Path, session: Session
) -> None:
    """The new profile is kept."""
    store = Store(tmp_path / "cache")
    find(path, session, store)
    found, runs = find(path, session, store, fresh=True)
    assert runs > 0
    assert not found.kept


def test_verdict_on_padding_is_kept(tmp_path: Path) -> None:
    """Padding that changed the answers stays off without another try."""
    path = onnx_models.save(onnx_models.variable_length(), tmp_path / "m" / "1" / "model.onnx")
    session = open_session(path, chain=CHAIN)
    policy = BatchPolicy(pad={session.inputs[0].name: Padding(axis=1, multiple=8)})
    store = Store(tmp_path / "cache")
    first, second = (find(path, session, store, policy)[0] for _ in range(2))
    assert second.kept
    assert second.padding == first.padding


def test_key_changes_with_all_that_the_numbers_depend_on(
    path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It covers the model, its config for sessions, providers and batches, machine and runtime."""
    base = key_of(path, session)
    found = {
        "session": key_of(path, session, options=SessionOptions(intra_op_threads=2)),
        "providers": key_of(path, session, chain=(Provider("cuda"), *CHAIN)),
        "batching": key_of(path, session, BatchPolicy(max_batch_size=8)),
    }
    for part, key in found.items():
        assert [name for name in base if key[name] != base[name]] == [part]
    for policy in (BatchPolicy(trust=True), BatchPolicy(latency_budget_ms=1)):
        assert key_of(path, session, policy)["batching"] != base["batching"]
    assert key_of(path, session, BatchPolicy(max_queue_size=1)) == base
    with monkeypatch.context() as patched:
        patched.setattr(identity, "ORT_VERSION", "0.0")
        assert key_of(path, session)["runtime"] != base["runtime"]
    onnx_models.save(onnx_models.mlp(seed=1), path)
    assert key_of(path, session)["model"] != base["model"]


def test_key_changes_with_external_data(tmp_path: Path) -> None:
    """Other weights next to the same file make another model."""
    path = onnx_models.save_with_external_data(
        onnx_models.mlp(), tmp_path / "mlp" / "1" / "model.onnx"
    )
    session = open_session(path, chain=CHAIN)
    before = key_of(path, session)["model"]
    data = next(file for file in path.parent.iterdir() if file != path)
    data.write_bytes(bytes(data.stat().st_size))
    assert key_of(path, session)["model"] != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "\x00\xff",
        lambda text: text.replace('"format": ', '"format": 9'),
        lambda text: text.replace('"seconds"', '"hours"'),
        lambda text: text.replace('"machine": "', '"machine": "other '),
    ],
)
def test_torn_or_foreign_file_is_measured_anew(
    tmp_path: Path, path: Path, session: Session, damage: Any
) -> None:
    """The log reports it, and the file is whole afterwards."""
    store = Store(tmp_path / "cache")
    find(path, session, store)
    (file,) = (tmp_path / "cache" / "profiles").glob("*.json")
    file.write_text(damage(file.read_text()))
    with capture_logs() as logs:
        found, runs = find(path, session, store)
    assert runs > 0
    assert not found.kept
    assert any("not usable" in entry["event"] for entry in logs)
    assert find(path, session, store)[1] == 0


def test_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, path: Path, session: Session
) -> None:
    """Each start measures, as it would without a cache."""
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    with capture_logs() as logs:
        for _ in range(2):
            assert find(path, session, store)[1] > 0
    assert [entry["log_level"] for entry in logs] == ["warning"]


MEASURE = """
import sys
from cohort.profiling import Store
from cohort.session import open_session
from pathlib import Path
from tests.profiling.test_store import CHAIN, find
path, cache = map(Path, sys.argv[1:])
session = open_session(path, chain=CHAIN)
print("ready", flush=True)
sys.stdin.readline()
print(find(path, session, Store(cache), briefly=True)[1])
"""


def test_processes_that_start_together_measure_once(tmp_path: Path, path: Path) -> None:
    """One holds the lock and measures; the others wait and read what it kept."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MEASURE, str(path), str(tmp_path / "cache")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    runs = [int(process.communicate(timeout=PATIENCE)[0]) for process in processes]
    assert sorted(count > 0 for count in runs) == [False, True]


HOLD = """
import sys
from pathlib import Path
from cohort.profiling import Store
with Store(Path(sys.argv[1])).locked({"model": "m"}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_of_a_process_that_died_or_hangs_is_no_obstacle(tmp_path: Path) -> None:
    """The wait for one that hangs is bounded; a dead one's lock is free."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with capture_logs() as logs, Store(tmp_path, lock_seconds=0.1).locked({"model": "m"}):
            assert "held for long" in logs[0]["event"]
        process.kill()
        process.wait()
    with capture_logs() as logs, Store(tmp_path).locked({"model": "m"}):
        assert not logs


def test_what_differs_from_the_newest_kept_profile_is_named(
    tmp_path: Path, path: Path, session: Session
) -> None:
    """The parts of the key are named; a model never seen has no parts."""
    store, key = Store(tmp_path / "cache"), key_of(path, session)
    assert store.differences(key) == []
    find(path, session, store)
    assert store.differences({**key, "runtime": "newer", "batching": "other"}) == [
        "runtime",
        "batching",
    ]


def test_failures_are_not_kept(tmp_path: Path, path: Path, session: Session) -> None:
    """Memory may have been short; the next start tries again."""
    store, key = Store(tmp_path / "cache"), key_of(path, session)

    class Fails(Counted):
        def run(self, feeds: Mapping[str, Array], control: Any = None) -> list[Array]:
            if len(next(iter(feeds.values()))) > 1:
                raise InferenceFailed("no memory")
            return super().run(feeds)

    fails: Any = Fails(session)
    assert "failed" in find(path, fails, store)[0].profile.reason
    assert store.read(key, PLAIN) is None


def test_every_way_to_run_is_tried(session: Session) -> None:
    """Each number of threads is tried with each number of rows and of runs at once."""
    counted = Counted(session)
    feeds = {1: {"x": _ones(1)}, 4: {"x": _ones(4)}}
    found = measure_concurrency({1: counted.run, 2: session.run}, feeds, [1, 2], budget=0.01)
    assert [(one.threads, one.rows, one.at_once) for one in found] == [
        (threads, rows, at_once) for threads in (1, 2) for rows in (1, 4) for at_once in (1, 2)
    ]
    assert counted.runs >= 1 + 1 + 2 + 2


def _ones(rows: int) -> Array:
    import numpy as np

    return np.ones((rows, 4), "f4")


def test_more_threads_are_best_only_where_clearly_faster() -> None:
    """The fewest threads win among nearly equal ways, then the fewest runs at once."""
    one = ConcurrentRuns(1, 8, 2, 0.01, 1000.0)
    assert best_concurrency([]) is None
    hardly_faster = ConcurrentRuns(2, 8, 1, 0.01, 1050.0)
    fewer_rows = ConcurrentRuns(1, 1, 1, 0.01, 5000.0)
    assert best_concurrency([one, hardly_faster, fewer_rows]) == one
    faster = ConcurrentRuns(2, 8, 1, 0.01, 1500.0)
    assert best_concurrency([one, faster]) == faster


def test_load_recalls_what_an_earlier_one_kept(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measures again if the config changed it; without a cache folder nothing is kept."""
    slowly = partial(profile_briefly, seconds=PATIENCE)  # a result that is not complete is not kept
    monkeypatch.setattr("cohort.onnx_engine.measurement.profile_briefly", slowly)
    cache = tmp_path / "cache"
    source = Source(path, "", ModelConfig(providers=CHAIN))
    assert [
        prepare_version(source, VersionOpener(where)).profile_result.kept
        for where in (cache, cache, None)
    ] == [
        False,
        True,
        False,
    ]
    other = ModelConfig(providers=CHAIN, batching=BatchPolicy(max_batch_size=4))
    assert not prepare_version(
        replace(source, config=other), VersionOpener(cache)
    ).profile_result.kept
