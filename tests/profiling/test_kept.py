"""Reading a kept profile's file: only plausible content is accepted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cohort.batching import BatchPolicy
from cohort.profiling import ConcurrentRuns, KeptProfile, Profile, Store, Threads, read_kept

POLICY = BatchPolicy(max_batch_size=32)
KEY = {"model": "0" * 64}
KEPT = KeptProfile(
    "2026-11-22T10:00:00+00:00",
    {1: 0.001, 2: 0.0012, 4: 0.0019},
    4,
    "",
    "",
    threads=Threads(2, 2, 1.7),
    concurrency=(ConcurrentRuns(1, 4, 2, 0.002, 4000.0),),
    change_seconds=0.1,
)


def content(**changed: Any) -> dict[str, Any]:
    """Return the content of a good file, except for the fields in `changed`."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(KEPT)))
    return {**plain, **changed}


def test_what_was_written_is_read() -> None:
    """The seconds are in the order of the rows."""
    assert read_kept(content(), POLICY) == KEPT
    seconds = {"4": 0.0019, "1": 0.001, "2": 0.0012}
    assert list(read_kept(content(seconds=seconds), POLICY).seconds) == [1, 2, 4]


@pytest.mark.parametrize(
    "changed",
    [
        {"seconds": {"1": 0.001, "1000000000": 1.0}, "max_batch_size": 1_000_000_000},
        {"seconds": {"1": 0.001, "64": 0.001}},
        {"seconds": {"1": -0.001, "4": 0.1}},
        {"seconds": {"1": nan, "4": 0.1}},
        {"seconds": {"1": 0.1, "4": inf}},
        {"seconds": {"1": 0.0, "4": 0.1}},
        {"seconds": {"1": 1e9, "4": 1e9}},
        {"seconds": {"1": 1.0, "4": 0.0001}},
        {"seconds": {"4": 0.1}},
        {"seconds": {"0": 0.1, "1": 0.1, "4": 0.1}},
        {"seconds": {}},
        {"seconds": [0.1]},
        {"max_batch_size": 3},
        {"max_batch_size": 0},
        {"max_batch_size": 1},
        {"reason": "rows influence each other"},
        {"reason": None},
        {"padding_off": "x" * 20_000},
        {"row_elements": -1},
        {"row_elements": 10**15},
        {"threads": {"chosen": 10**6, "tried": 10**6, "gain": 2.0}},
        {"threads": {"chosen": 3, "tried": 4, "gain": 2.0}},
        {"threads": {"chosen": 2, "tried": 2, "gain": nan}},
        {"concurrency": [{"threads": 1, "rows": 1, "at_once": 1, "seconds": nan}]},
        {"change_seconds": -0.1},
        {"change_seconds": 1e9},
        {"change_seconds": nan},
        {"row_elements": 3},
        {"measured": "yesterday"},
        {"of_a_later_release": True},
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    """The sentence fits on a line."""
    with pytest.raises(ValueError, match=r"^[^\n]{5,300}$"):
        read_kept(content(**changed), POLICY)


def test_where_rows_may_influence_each_other_no_change_was_measured() -> None:
    """Runs would be filled up, and the rows that were asked for would see it."""
    trusting = replace(POLICY, trust=True)
    with pytest.raises(ValueError, match="change_seconds"):
        read_kept(content(), trusting)
    assert read_kept(content(change_seconds=0.0), trusting).max_batch_size == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
SECONDS = st.dictionaries(
    st.integers(-1, 10**10).map(str) | st.text(max_size=3), st.floats() | st.none(), max_size=5
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "seconds": SECONDS | JSON,
        "max_batch_size": st.integers() | JSON,
        "reason": st.text(max_size=3) | JSON,
        "row_elements": st.integers() | JSON,
        "change_seconds": st.floats() | JSON,
        "threads": st.fixed_dictionaries(
            {"chosen": st.integers(), "tried": st.integers(), "gain": st.floats()}
        )
        | JSON,
        "measured": JSON,
        "other": JSON,
    },
)


@given(changed=FIELDS)
def test_whatever_a_file_holds_is_sensible_or_refused(changed: dict[str, Any]) -> None:
    """What is read gives estimates that are positive and finite, and batches within the policy."""
    try:
        kept = read_kept(content(**changed), POLICY)
    except ValueError:
        return
    assert 1 <= kept.max_batch_size <= POLICY.max_batch_size
    profile = Profile(
        kept.seconds,
        kept.max_batch_size,
        kept.reason,
        kept.row_elements,
        change_seconds=kept.change_seconds,
    )
    assert profile.filled_rows in (0, kept.max_batch_size)
    for rows in (0, 0.5, 1, 3, 32, 1e6):
        assert profile.seconds_for(rows) > 0
        assert isfinite(profile.seconds_for(rows))
    assert kept.threads.chosen >= 1


@given(text=JSON.map(json.dumps) | st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_file_of_anything_at_all_counts_as_absent(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """Nothing is raised, whatever is in it."""
    store = Store(tmp_path_factory.getbasetemp() / "anything")
    store.write(KEY, KEPT)
    assert store.read(KEY, POLICY) == KEPT
    store._path(KEY).write_text(text, encoding="utf-8", errors="replace")
    assert store.read(KEY, POLICY) is None


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "put",
    [
        lambda path: path.write_bytes(b" " * (2 << 20)),
        lambda path: path.write_text(path.read_text().replace('"format": ', '"format": 9')),
        put_pipe,
        lambda path: path.unlink() or path.mkdir(),
    ],
)
def test_file_that_is_none_of_ours_is_said_in_one_line(
    tmp_path: Path, put: Callable[[Path], object]
) -> None:
    """The file is too large, of a later release, a pipe without a writer, or a folder."""
    store = Store(tmp_path)
    store.write(KEY, KEPT)
    put(store._path(KEY))
    with capture_logs() as logs:
        assert store.read(KEY, POLICY) is None
    assert ["not usable" in line["event"] for line in logs] == [True]
