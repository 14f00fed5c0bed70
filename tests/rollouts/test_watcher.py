"""The operator's file and the state folder, followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree, rmtree
from threading import Event

import pytest
from structlog.testing import capture_logs

from cohort.rollouts import Decision, DecisionStore, RolledBack, RolloutEvent, Rollouts
from cohort.rollouts.watcher import RolloutWatcher, log_event
from tests.waiting import PATIENCE, until

TWO = "m: {variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}}"
ONE = "m: {variants: {a: {version: 1, weight: 1}}}"


class Replica:
    """One process's rollouts, over files that others may share."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rollouts.yaml"
        self.state = DecisionStore(folder / "state")
        self.events: list[RolloutEvent] = []
        self.rollouts = Rollouts(catalog=dict, observe=self.events.append)
        self.watcher = RolloutWatcher(self.file, folder / "state", self.rollouts)

    def write(self, text: str) -> None:
        """Write the file with an old time, so that it counts as complete."""
        self.file.write_text(text)
        then = self.file.stat().st_mtime - 60 + len(text)
        os.utime(self.file, (then, then))

    @property
    def valid(self) -> bool:
        return self.watcher.valid

    @property
    def out(self) -> list[str]:
        variants = self.rollouts.live["m"].rollout.variants.values()
        return [one.name for one in variants if one.rolled_back]


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    """One without files."""
    replica = Replica(tmp_path)
    yield replica
    replica.rollouts.close()


async def test_a_broken_edit_changes_nothing_and_a_mended_one_is_taken(replica: Replica) -> None:
    """The running rollout stays, with the problem in sight."""
    replica.write(TWO)
    await replica.watcher.check_file()
    running = replica.rollouts.live["m"].config
    replica.write("m: {variants: {a: {version: 1, wieght: 1}}}")
    await replica.watcher.check_file()
    assert replica.rollouts.live["m"].config is running
    assert [replica.valid] == [False]
    assert "m.variants.a: unknown key 'wieght'" in "".join(replica.watcher.problems(settled=False))
    assert replica.watcher.loading_reason() == "loading models"
    replica.write(ONE)
    await replica.watcher.check_file()
    assert replica.rollouts.pinned == {"m": {1}}
    assert replica.valid
    assert replica.watcher.problems(settled=False) == []


async def test_a_server_without_the_file_serves(replica: Replica) -> None:
    """A server with a broken file does not, until it was read."""
    await replica.watcher.check_file()
    assert replica.watcher.initialized
    broken = Replica(replica.file.parent)
    broken.write("m: 3")
    await broken.watcher.check_file()
    assert not broken.watcher.initialized
    assert "m: must be keys with values" in broken.watcher.loading_reason()


async def test_a_file_under_the_other_ending_is_named_until_it_is_renamed(
    replica: Replica,
) -> None:
    """The server serves during that time, without a rollout."""
    other = replica.file.with_suffix(".yml")
    other.write_text(ONE)
    await replica.watcher.check_file()
    assert replica.watcher.initialized
    named = ["rollouts.yml: is not read; rename it to rollouts.yaml"]
    assert replica.watcher.problems(settled=False) == named
    other.unlink()
    await replica.watcher.check_file()
    assert replica.watcher.problems(settled=False) == []


async def test_a_file_that_is_still_being_written_is_waited_for(replica: Replica) -> None:
    """Its first half may be a rollout, too, and would end what was decided."""
    replica.file.write_text(ONE)
    await replica.watcher.check_file()
    assert replica.rollouts.pinned == {"m": {1}}


async def test_a_decision_goes_from_replica_to_replica_and_over_a_restart(
    replica: Replica, tmp_path: Path
) -> None:
    """It holds until one of them clears it."""
    replica.write(TWO)
    other = Replica(tmp_path)
    for one in (replica, other):
        await one.watcher.check_file()
        await one.watcher.sync()
    replica.rollouts.roll_back("m", "b")
    await replica.watcher.sync()
    assert not replica.rollouts.pending_records
    await other.watcher.step()
    assert (replica.out, other.out) == (["b"], ["b"])
    later = Replica(tmp_path)
    await later.watcher.check_file()
    await later.watcher.sync()
    assert later.out == ["b"]
    other.rollouts.clear("m")
    await other.watcher.sync()
    await replica.watcher.step()
    assert (replica.out, other.out) == ([], [])


async def test_what_was_cleared_does_not_come_back_with_an_older_look(replica: Replica) -> None:
    """A look at the folder that began before the operator's word knows less."""
    replica.write(TWO)
    await replica.watcher.check_file()
    replica.rollouts.roll_back("m", "b")
    await replica.watcher.sync()
    before = replica.state.read()
    replica.rollouts.clear("m")
    replica.rollouts.follow(before)
    assert replica.out == []


async def test_a_folder_that_takes_nothing_is_told_and_tried_again(
    replica: Replica, tmp_path: Path
) -> None:
    """The decision holds until then."""
    (tmp_path / "state").touch()
    replica.write(TWO)
    await replica.watcher.check_file()
    replica.rollouts.roll_back("m", "b")
    await replica.watcher.sync()
    assert replica.out == ["b"]
    assert "cannot be written" in "".join(replica.watcher.problems(settled=False))
    (tmp_path / "state").unlink()
    await replica.watcher.sync()
    assert replica.state.read()[0]["m"][2].reason == "operator"
    assert replica.watcher.problems(settled=False) == []


async def test_a_folder_that_cannot_be_read_brings_nobody_back(
    replica: Replica, tmp_path: Path
) -> None:
    """What was decided stays as it was known."""
    replica.write(TWO)
    await replica.watcher.check_file()
    replica.rollouts.roll_back("m", "b")
    await replica.watcher.sync()
    (tmp_path / "state/rollouts").rename(tmp_path / "away")
    (tmp_path / "state/rollouts").symlink_to("rollouts")
    await replica.watcher.step()
    assert replica.out == ["b"]
    assert "cannot be read" in replica.watcher.problems(settled=False)[0]


@pytest.mark.parametrize("text", ["", '{"version": 2, "rea', "\0\0\0", '{"reason": 7}'])
async def test_a_torn_record_keeps_its_version_out_until_it_is_cleared(
    replica: Replica, text: str
) -> None:
    """Nothing else changes, the problem is reported while it exists, and clearing ends both."""
    record = replica.file.parent / "state/rollouts/m/2.json"
    record.parent.mkdir(parents=True)
    record.write_text(text)
    replica.write(TWO)
    await replica.watcher.check_file()
    await replica.watcher.step()
    assert replica.out == ["b"]
    assert "m/2.json" in replica.watcher.problems(settled=False)[0]
    replica.rollouts.clear("m", "b")
    await replica.watcher.step()
    assert replica.out == []
    assert not record.exists()
    await replica.watcher.step()
    assert replica.watcher.problems(settled=False) == []


async def test_a_record_that_cannot_be_removed_is_told_and_tried_again(replica: Replica) -> None:
    """The cleared version is back in rollouts here before that."""
    record = replica.file.parent / "state/rollouts/m/2.json"
    record.mkdir(parents=True)
    replica.write(TWO)
    await replica.watcher.check_file()
    replica.rollouts.clear("m")
    await replica.watcher.sync()
    assert replica.out == []
    assert "cannot be removed" in "".join(replica.watcher.problems(settled=False))
    record.rmdir()
    await replica.watcher.sync()
    assert not replica.rollouts.pending_clears
    assert replica.watcher.problems(settled=False) == []


async def test_two_replicas_that_decide_at_once_agree(replica: Replica, tmp_path: Path) -> None:
    """If two replicas roll back at once, the first record counts; a clear ends it for both."""
    other = Replica(tmp_path)
    replica.write(TWO)
    for one in (replica, other):
        await one.watcher.check_file()
        one.rollouts.roll_back("m", "b")
    for one in (replica, other, replica):
        await one.watcher.step()
    stand = replica.state.read()[0]["m"][2]
    assert [one.rollouts.live["m"].decisions for one in (replica, other)] == [{2: stand}] * 2
    replica.rollouts.clear("m", "b")
    for one in (replica, other):
        await one.watcher.step()
    assert (replica.out, other.out) == ([], [])


async def test_a_version_that_leaves_by_an_edit_comes_back_anew(replica: Replica) -> None:
    """A version removed by an edit loses its record, so it returns without a rollback."""
    replica.write(TWO)
    await replica.watcher.check_file()
    replica.rollouts.roll_back("m", "b")
    await replica.watcher.sync()
    replica.write(ONE)
    await replica.watcher.check_file()
    await replica.watcher.sync()
    assert replica.state.read()[0] == {}
    replica.write(TWO)
    await replica.watcher.check_file()
    await replica.watcher.step()
    assert replica.out == []


async def test_a_version_that_left_while_nobody_served_comes_back_anew(
    replica: Replica, tmp_path: Path
) -> None:
    """The edit is newer than the decision."""
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    replica.state.record("m", Decision(2, "errors", "", past))
    replica.write(ONE)
    await replica.watcher.check_file()
    for _ in range(2):
        await replica.watcher.sync()
    assert replica.state.read()[0] == {}


async def test_a_decision_about_a_version_that_is_not_known_yet_is_left_alone(
    replica: Replica,
) -> None:
    """Another replica read a newer file, and judged a version that is not in this one's."""
    replica.write(ONE)
    await replica.watcher.check_file()
    await replica.watcher.sync()
    replica.state.record("m", Decision.now(2, "errors", ""))
    await replica.watcher.sync()
    await replica.watcher.sync()
    assert 2 in replica.state.read()[0]["m"]
    replica.write(TWO)
    await replica.watcher.check_file()
    assert replica.out == ["b"]


# -- a state folder that is lost


@pytest.fixture
async def decided(replica: Replica) -> Replica:
    """One that rolled a variant back, and saved that."""
    replica.write(TWO)
    await replica.watcher.check_file()
    await replica.watcher.sync()
    replica.rollouts.roll_back("m", "b")
    await replica.watcher.sync()
    assert not replica.watcher.state_problems
    return replica


async def test_a_folder_that_is_renamed_away_is_told_and_not_made_again(
    decided: Replica, tmp_path: Path
) -> None:
    """What was decided holds, and is there again when the folder is back."""
    (tmp_path / "state").rename(tmp_path / "away")
    for _ in range(3):
        await decided.watcher.step()
        assert decided.out == ["b"]
    assert "is gone" in decided.watcher.problems(settled=False)[0]
    assert not (tmp_path / "state").exists()
    (tmp_path / "away").rename(tmp_path / "state")
    await decided.watcher.step()
    assert decided.out == ["b"]
    assert not decided.watcher.state_problems


async def test_a_folder_that_was_emptied_gets_its_decisions_again(
    decided: Replica, tmp_path: Path
) -> None:
    """If the state folder was emptied, a replica that knows the decisions writes them again."""
    rmtree(tmp_path / "state/rollouts")
    later = Replica(tmp_path)
    await decided.watcher.step()
    assert "emptied" in decided.watcher.problems(settled=False)[0]
    await decided.watcher.step()
    assert not decided.watcher.state_problems
    await later.watcher.check_file()
    await later.watcher.sync()
    assert (decided.out, later.out) == (["b"], ["b"])


async def test_a_folder_that_was_restored_from_a_copy_is_the_former_one(
    decided: Replica, tmp_path: Path
) -> None:
    """Its mark identifies it; from then on its new place on the disk is also known."""
    copytree(tmp_path / "state", tmp_path / "copy")
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "copy").rename(tmp_path / "state")
    await decided.watcher.step()
    assert not decided.watcher.state_problems
    rmtree(tmp_path / "state/rollouts")
    await decided.watcher.step()
    assert "emptied" in decided.watcher.problems(settled=False)[0]


async def test_another_folder_in_its_place_is_told_until_it_is_gone_again(
    decided: Replica, tmp_path: Path
) -> None:
    """The cause may be a missing mount, or another one over it; decisions are safe in both.

    Every replica that knew the former one reports it, not only the first to look.
    """
    other = Replica(tmp_path)
    await other.watcher.check_file()
    await other.watcher.sync()
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "state").mkdir()
    for _ in range(3):
        for one in (decided, other):
            await one.watcher.step()
            assert one.out == ["b"]
            assert "not the same as before" in one.watcher.problems(settled=False)[0]
    assert decided.state.read().decisions["m"].keys() == {2}
    later = Replica(tmp_path)
    await later.watcher.check_file()
    await later.watcher.sync()
    assert (later.out, list(later.watcher.state_problems)) == (["b"], [])
    (tmp_path / "state").rename(tmp_path / "other")
    (tmp_path / "away").rename(tmp_path / "state")
    for one in (decided, other):
        await one.watcher.step()
        assert not one.watcher.state_problems


async def test_a_folder_that_a_restarted_replica_made_anew_learns_what_is_known(
    decided: Replica, tmp_path: Path
) -> None:
    """The one that starts knows nothing; the other writes the decision and reports the folder."""
    rmtree(tmp_path / "state")
    later = Replica(tmp_path)
    await later.watcher.check_file()
    await later.watcher.sync()
    await decided.watcher.step()
    await decided.watcher.step()
    await later.watcher.step()
    assert (decided.out, later.out) == (["b"], ["b"])
    assert "not the same as before" in decided.watcher.problems(settled=False)[0]
    assert not later.watcher.state_problems


async def test_what_was_cleared_while_the_folder_was_away_is_cleared_for_all(
    decided: Replica, tmp_path: Path
) -> None:
    """A clear is a record, so that no replica writes again what it still knows."""
    other = Replica(tmp_path)
    await other.watcher.check_file()
    await other.watcher.sync()
    (tmp_path / "state").rename(tmp_path / "away")
    decided.rollouts.clear("m")
    for one in (decided, other):
        await one.watcher.step()
    assert (decided.out, other.out) == ([], ["b"])
    (tmp_path / "away").rename(tmp_path / "state")
    for one in (other, decided, other, decided, other):
        await one.watcher.step()
    assert (decided.out, other.out) == ([], [])
    assert decided.state.read().decisions == {}


async def test_a_clear_in_the_folder_is_logged_with_who_made_it(
    decided: Replica, tmp_path: Path
) -> None:
    """`cohort rollout clear` makes such a clear, without a request to a server."""
    DecisionStore(tmp_path / "state", by="alice on a-machine").clear("m", 2)
    decided.events.clear()
    await decided.watcher.step()
    (event,) = decided.events
    with capture_logs() as logged:
        log_event(event)
    (line,) = logged
    assert line["cleared_by"].startswith("alice on a-machine, 20")
    assert (line["event"], line["variants"], line["version"]) == ("rollback ended", ["b"], 2)


async def test_what_is_rolled_back_is_told_with_its_reason(decided: Replica) -> None:
    """Only the models in the question are included."""
    assert decided.rollouts.rolled_back(["m", "n"]) == {"m/2": "by an operator"}
    assert decided.rollouts.rolled_back(["n"]) == {}


@pytest.mark.parametrize(("reason", "level"), [("operator", "info"), ("errors", "warning")])
def test_a_rollback_is_a_warning_unless_an_operator_asked_for_it(reason: str, level: str) -> None:
    """In that case an operator knows of it already."""
    with capture_logs() as logged:
        log_event(RolledBack("m", 2, ("b",), False, reason, "", decided_here=True))
    assert [(line["event"], line["log_level"]) for line in logged] == [("rolled back", level)]


async def test_a_rollout_that_is_taken_out_ends_its_decisions(
    decided: Replica, tmp_path: Path
) -> None:
    """With the new file, no variant is rolled back, and the folder agrees."""
    decided.write("n: {variants: {a: {version: 1, weight: 1}}}")
    await decided.watcher.check_file()
    await decided.watcher.step()
    assert decided.state.read().decisions == {}
    decided.write(TWO)
    await decided.watcher.check_file()
    assert decided.out == []


async def test_a_problem_of_the_folder_is_logged_once_and_so_is_its_end(
    decided: Replica, tmp_path: Path
) -> None:
    """It is not logged at each look."""

    async def logged() -> list[str]:
        with capture_logs() as lines:
            for _ in range(3):
                await decided.watcher.step()
        return [line["event"] for line in lines]

    assert await logged() == []
    (tmp_path / "state").rename(tmp_path / "away")
    assert await logged() == ["state folder problem"]
    (tmp_path / "away").rename(tmp_path / "state")
    assert await logged() == ["state folder well again"]


async def test_a_rollback_after_a_clear_is_another_incident(decided: Replica) -> None:
    """This holds even before the folder has the clear: a receiver must get both."""
    decided.events.clear()
    for _ in range(2):
        decided.rollouts.clear("m")
        decided.rollouts.roll_back("m", "b")
    one, other = (event.incident for event in decided.events if isinstance(event, RolledBack))
    assert one != other


async def test_a_torn_record_is_mended_by_who_knows_it(decided: Replica, tmp_path: Path) -> None:
    """Its content is known here; no caller gets the version before."""
    record = tmp_path / "state/rollouts/m/2.json"
    content = record.read_text()
    record.write_text(content[:20])
    await decided.watcher.step()
    assert "cannot be read" in decided.watcher.problems(settled=False)[0]
    await decided.watcher.step()
    assert (decided.out, record.read_text()) == (["b"], content)
    assert not decided.watcher.state_problems


async def test_a_start_without_a_folder_that_can_be_read_lets_no_candidate_in(
    decided: Replica, tmp_path: Path
) -> None:
    """Earlier decisions are unknown until the folder can be read."""
    (tmp_path / "state/rollouts").rename(tmp_path / "away")
    (tmp_path / "state/rollouts").symlink_to("rollouts")
    later = Replica(tmp_path)
    await later.watcher.check_file()
    await later.watcher.sync()
    assert later.out == ["b"]
    (tmp_path / "state/rollouts").unlink()
    (tmp_path / "away").rename(tmp_path / "state/rollouts")
    decided.rollouts.clear("m")
    await decided.watcher.sync()
    await later.watcher.step()
    assert later.out == []


async def test_a_folder_that_does_not_answer_holds_up_nobody(
    decided: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the state folder hangs, the guard still decides, and only one thread waits."""
    monkeypatch.setattr("cohort.rollouts.watcher.SYNC_SECONDS", 0.05)
    answers = Event()
    looks = []

    def hang() -> str:
        looks.append(1)
        answers.wait(PATIENCE)
        return ""

    monkeypatch.setattr(decided.watcher._folder, "check", hang)
    for _ in range(3):
        await decided.watcher.step()
        assert "has not answered" in decided.watcher.problems(settled=False)[0]
        assert decided.out == ["b"]
    assert len(looks) == 1
    answers.set()
    await until(lambda: not decided.watcher.state_problems)
    await decided.watcher.step()
    assert decided.out == ["b"]


async def test_a_missing_rollouts_file_ends_no_decision(decided: Replica) -> None:
    """The rollout ends; when the file is back, rolled back variants are still out."""
    decided.file.unlink()
    await decided.watcher.check_file()
    await decided.watcher.step()
    assert decided.rollouts.live == {}
    decided.write(TWO)
    await decided.watcher.check_file()
    await decided.watcher.step()
    assert decided.out == ["b"]
