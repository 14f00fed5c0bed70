"""The server's decisions, on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from cohort.rollouts import Decision, DecisionStore, Recorded
from cohort.rollouts.decision_store import KEPT
from cohort.rollouts.ramp import RampProgress
from tests.waiting import PATIENCE

CANARY = Decision(2, "errors", "4.00% of 900 requests against 1.00%", "2026-05-01T10:00:00.000")


@pytest.fixture
def state(tmp_path: Path) -> DecisionStore:
    """A folder that is not there yet."""
    return DecisionStore(tmp_path / "state")


def test_a_decision_is_read_by_every_process_until_it_is_cleared(
    state: DecisionStore, tmp_path: Path
) -> None:
    """A later process reads it as well; clearing it leaves the others."""
    state.record("digits", CANARY)
    state.record("digits", Decision.now(3, "operator", ""))
    state.record("iris", Decision.now(7, "latency", ""))
    other = DecisionStore(tmp_path / "state")
    decisions, _, problems, *_ = other.read()
    assert decisions["digits"][2] == CANARY
    assert {model: set(one) for model, one in decisions.items()} == {"digits": {2, 3}, "iris": {7}}
    other.clear("digits", 2)
    other.clear("iris", 7)
    other.clear("iris", 8)
    assert {model: set(one) for model, one in state.read()[0].items()} == {"digits": {3}}
    assert not problems


def test_a_clear_is_recorded_with_who_made_it(state: DecisionStore, tmp_path: Path) -> None:
    """The name is text of one line; a clear without it, or with an unreadable one, still counts."""
    for version, by in ((2, "alice on a-machine"), (3, "a\nb"), (4, ""), (5, "torn"), (6, "x")):
        state.record("digits", Decision.now(version, "errors", ""))
        DecisionStore(tmp_path / "state", by=by).clear("digits", version)
    digests = {
        path.name.split(".")[0]: path.name.split(".")[1]
        for path in (tmp_path / "state").rglob("*.cleared")
    }
    (torn,) = (tmp_path / "state").rglob("5.*.cleared")
    torn.write_text("{")
    recorded = state.read({digests[one] for one in "2345"})
    assert recorded.cleared["digits"] == {*digests.values()}
    said = {version: recorded.cleared_by.get(digest) for version, digest in digests.items()}
    first, second = said.pop("2"), said.pop("3")
    assert first
    assert first.startswith("alice on a-machine, 20")
    assert second
    assert second.startswith("a\\nb, 20")
    assert said == {"4": "", "5": "", "6": None}


def test_a_ramps_record_of_another_release_is_left_alone(
    state: DecisionStore, tmp_path: Path
) -> None:
    """Its content is unknown here, so it may be further."""
    assert state.move_ramp("m", "2.0123456789abcdef", RampProgress(1, 1, 0.0))
    record = tmp_path / "state/rollouts/m/2.0123456789abcdef.ramp"
    record.write_text('{"format": 2}')
    assert state.move_ramp("m", "2.0123456789abcdef", RampProgress(1, 2, 0.0)) is False
    assert record.read_text() == '{"format": 2}'


def test_without_a_folder_nothing_is_decided(state: DecisionStore) -> None:
    """A fresh server does not have one."""
    assert state.read() == Recorded({}, {}, [])


def test_the_first_of_two_decisions_stands(state: DecisionStore) -> None:
    """Two replicas that come to the same do not overwrite each other."""
    state.record("digits", CANARY)
    state.record("digits", Decision.now(2, "latency", ""))
    assert state.read()[0]["digits"][2] == CANARY


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Processes that share the folder decide about other versions of the same model."""
    code = (
        "import sys; from pathlib import Path; from cohort.rollouts.decision_store import *\n"
        "for version in range(int(sys.argv[2]), 60, 3):\n"
        "    DecisionStore(Path(sys.argv[1])).record('m', Decision.now(version, 'errors', ''))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(first)])
        for first in (1, 2, 3)
    ]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0]
    assert set(DecisionStore(tmp_path).read()[0]["m"]) == set(range(1, 60))
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"version": 2}', '{"reason": 7}', '{"reason": []}', "\xff"],
)
def test_a_broken_file_keeps_its_version_out_and_is_told(
    state: DecisionStore, tmp_path: Path, text: str
) -> None:
    """Its name contains the version: to let it back in would be a guess."""
    folder = tmp_path / "state/rollouts/digits"
    folder.mkdir(parents=True)
    (folder / "2.json").write_bytes(text.encode("latin-1"))
    state.record("digits", Decision.now(3, "errors", ""))
    recorded = state.read()
    (problem,) = recorded.problems
    assert recorded.decisions["digits"][2].reason == "unreadable"
    assert recorded.decisions["digits"][3].reason == "errors"
    assert "digits/2.json" in problem
    state.clear("digits", 2)
    assert state.read().problems == []


def test_what_is_no_decision_is_left_alone(state: DecisionStore, tmp_path: Path) -> None:
    """Files of other names, a file in place of a folder, and unknown keys."""
    folder = tmp_path / "state/rollouts/digits"
    folder.mkdir(parents=True)
    for name in ("notes.txt", "0.json", ".2.json.abc", "../stray"):
        (folder / name).write_text("x")
    (folder / "2.json").write_text(json.dumps({"reason": "errors", "by": "a later release"}))
    assert state.read() == Recorded({"digits": {2: Decision(2, "errors")}}, {}, [])


def test_an_unreadable_folder_is_not_an_empty_one(state: DecisionStore, tmp_path: Path) -> None:
    """Otherwise a file server's hiccup would bring back rolled back versions."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/rollouts").symlink_to("rollouts")
    with pytest.raises(OSError, match="symbolic"):
        state.read()


def test_a_clear_is_a_record_and_an_absence_is_none(state: DecisionStore, tmp_path: Path) -> None:
    """It names one decision: a later one about the same version is another."""
    state.record("digits", CANARY)
    (tmp_path / "state/rollouts/digits/2.json").unlink()
    assert state.read() == Recorded({}, {}, [])
    state.record("digits", CANARY)
    state.clear("digits", 2)
    assert state.read() == Recorded({}, {"digits": frozenset({CANARY.digest})}, [])
    state.record("digits", CANARY)
    assert state.read().decisions == {}
    state.record("digits", Decision.now(2, "latency", ""))
    assert state.read().decisions["digits"][2].reason == "latency"


def test_a_record_that_came_after_its_clear_does_not_count(
    state: DecisionStore, tmp_path: Path
) -> None:
    """A process may stop between the two; a later decision takes its place."""
    state.record("digits", CANARY)
    record = tmp_path / "state/rollouts/digits/2.json"
    content = record.read_text()
    state.clear("digits", 2)
    record.write_text(content)
    assert state.read().decisions == {}
    state.record("digits", Decision.now(2, "latency", ""))
    assert state.read().decisions["digits"][2].reason == "latency"


def test_what_the_release_before_wrote_and_reads_is_the_same(
    state: DecisionStore, tmp_path: Path
) -> None:
    """Both may share a folder: each release can read the other's records."""
    folder = tmp_path / "state/rollouts/digits"
    folder.mkdir(parents=True)
    (folder / "2.json").write_text(json.dumps({"format": 1, **asdict(CANARY)}))
    assert state.read().decisions["digits"] == {2: CANARY}
    state.record("digits", Decision.now(3, "errors", ""))
    assert json.loads((folder / "3.json").read_text()).keys() == {
        *("format", "version", "reason", "detail", "at")
    }
    state.clear("digits", 2)
    assert [path.name for path in folder.glob("*.json")] == ["3.json"]


def test_clears_are_kept_within_a_bound(
    state: DecisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones are kept; a folder with too many files is not read at all."""
    for number in range(KEPT + 5):
        state.record("digits", Decision(2, "operator", at=str(number)))
        state.clear("digits", 2)
    cleared = state.read().cleared["digits"]
    assert len(cleared) == KEPT
    assert Decision(2, "operator", at=str(KEPT + 4)).digest in cleared
    monkeypatch.setattr("cohort.rollouts.decision_store.MAX_RECORDS", KEPT - 1)
    with pytest.raises(OSError, match=f"more than {KEPT - 1} files"):
        state.read()
