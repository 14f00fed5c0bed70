"""Ramps: a share that grows by steps, in one replica and in several, over a real state folder."""

from __future__ import annotations

import json
import os
from itertools import count
from math import inf, nan
from pathlib import Path
from shutil import rmtree

import pytest

from cohort.registry import State
from cohort.rollouts import DecisionStore, RampMoved, Rollouts, RolloutWatcher
from tests.engines import make_catalog, make_entry
from tests.rollouts.engines import Events, make_engine

RAMP = (
    "m: {variants: {stable: {version: 1, weight: 100}, "
    "canary: {version: 2, ramp: [1%, 5%, 25%], soak_minutes: [1, 2, 3]}}, "
    "guard: {max_error_rate_increase: 0.01}}"
)


class Replica:
    """One process's rollouts over files that others share; versions 1 and 2 are READY."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rollouts.yaml"
        self.state = DecisionStore(folder / "state")
        self.events = Events()
        self.canary = State.READY
        engines = {1: make_engine(), 2: make_engine()}
        self.rollouts = Rollouts(
            catalog=lambda: make_catalog(
                {
                    "m": [
                        make_entry(1, engines[1], state=State.READY),
                        make_entry(2, engines[2], state=self.canary),
                    ]
                }
            ),
            observe=self.events.observe,
        )
        self.watcher = RolloutWatcher(self.file, folder / "state", self.rollouts)

    async def edit(self, text: str) -> None:
        """Write the file with an old time, so that it counts as complete, and read it."""
        self.file.write_text(text)
        then = self.file.stat().st_mtime - 60 + len(text)
        os.utime(self.file, (then, then))
        await self.start()

    async def start(self) -> None:
        await self.watcher.check_file()
        await self.watcher.sync()

    async def serve(self, seconds: int, *, asked: bool = True) -> None:
        """Let time pass, with a request a second of a caller of the canary, and sync after it."""
        live = self.rollouts.live["m"]
        first = live.config.rollout.at_step(0)
        key = next(key for key in map(str, count()) if first.choose(key).name == "canary")
        for _ in range(seconds):
            if asked:
                live.choose(key, {1, 2})
            self.rollouts.ramps.tick(live, 1.0)
        await self.watcher.sync()

    @property
    def share(self) -> float:
        """The canary's share of callers, in percent."""
        return round(100 * self.rollouts.live["m"].rollout.shares()["canary"], 3)

    @property
    def moves(self) -> list[tuple[float, bool]]:
        """The steps that were taken, and whether this replica moved them."""
        return [(one.percent, one.decided_here) for one in self.events if type(one) is RampMoved]

    @property
    def shown(self) -> dict[str, object]:
        described = self.rollouts.describe("m")
        assert described is not None
        ramp: dict[str, object] = described["ramp"]
        return ramp


async def test_a_share_grows_step_by_step_and_ends_at_the_last(tmp_path: Path) -> None:
    """Each step lasts its soak time; the rest is the operator's."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP)
    assert (replica.share, replica.shown["state"]) == (1, "not serving")
    await replica.serve(59)
    assert (replica.share, replica.shown["state"]) == (1, "soaking")
    await replica.serve(1)
    assert replica.share == 5
    await replica.serve(119)
    assert replica.share == 5
    await replica.serve(1)
    assert (replica.share, replica.shown["step"], replica.shown["soaked_seconds"]) == (25, 3, 0)
    for _ in range(3):
        await replica.serve(180)
        assert (replica.share, replica.shown["state"]) == (25, "finished")
    assert replica.moves == [(5, True), (25, True), (25, True)]


async def test_all_callers_come_after_the_last_step_where_that_is_asked_for(tmp_path: Path) -> None:
    """The baseline gets none, and is there to go back to."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP.replace("3]}", "3], auto_promote: true}"))
    for seconds in (60, 120, 180):
        await replica.serve(seconds)
    assert (replica.share, replica.shown["state"]) == (100, "promoted")
    replica.rollouts.roll_back("m", "canary")
    assert replica.share == 0


async def test_only_time_in_which_the_variant_serves_counts(tmp_path: Path) -> None:
    """Time before READY, a minute after a request, or with a stopped process does not count."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP)
    replica.canary = State.LOADING
    await replica.serve(100)
    assert (replica.shown["soaked_seconds"], replica.shown["state"]) == (0, "not serving")
    replica.canary = State.READY
    await replica.serve(1)
    await replica.serve(500, asked=False)
    assert (replica.shown["soaked_seconds"], replica.share) == (0, 5), "a minute after the last one"
    replica.rollouts.live["m"].ramp_requests += 1
    replica.rollouts.ramps.tick(replica.rollouts.live["m"], 3600.0)
    assert replica.shown["soaked_seconds"] == 5


async def test_progress_survives_restarts(tmp_path: Path) -> None:
    """The step survives, and the soak time except for half a minute."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP)
    await replica.serve(60)
    await replica.serve(50)
    await replica.watcher.sync()
    later = Replica(tmp_path)
    await later.start()
    assert (later.share, later.shown["soaked_seconds"]) == (5, 50)
    assert later.moves == [(5, False)]


async def test_replicas_go_together(tmp_path: Path) -> None:
    """One moves the step for all, and reports it; a late one does not move it back."""
    one, other = Replica(tmp_path), Replica(tmp_path)
    await one.edit(RAMP)
    await other.start()
    await other.serve(40)
    await one.serve(60)
    assert (one.share, other.share) == (5, 1)
    await other.serve(1)
    assert other.share == 5
    await one.serve(120)
    await other.serve(60)
    assert (one.share, other.share) == (25, 25)
    assert (one.moves, other.moves) == ([(5, True), (25, True)], [(5, False), (25, False)])


async def test_a_lost_state_folder_moves_nothing_up(tmp_path: Path) -> None:
    """It also moves nothing down.

    A start without it is at the first step, until a replica knows better.
    """
    replica = Replica(tmp_path)
    await replica.edit(RAMP)
    await replica.serve(60)
    (tmp_path / "state").rename(tmp_path / "away")
    for _ in range(3):
        await replica.serve(200)
        assert replica.share == 5
    (tmp_path / "away").rename(tmp_path / "state")
    await replica.serve(1)
    assert replica.share == 25
    rmtree(tmp_path / "state")
    later = Replica(tmp_path)
    await later.start()
    assert later.share == 1
    for one in (replica, replica, later):
        await one.watcher.sync()
    assert (replica.share, later.share) == (25, 25)


async def test_another_folder_in_its_place_moves_nothing_up(tmp_path: Path) -> None:
    """It may be another fleet's, whose ramp of the same version is further."""
    further = Replica(tmp_path)
    await further.edit(RAMP)
    await further.serve(60)
    await further.serve(120)
    (tmp_path / "state").rename(tmp_path / "theirs")
    replica = Replica(tmp_path)
    await replica.start()
    (tmp_path / "state").rename(tmp_path / "ours")
    (tmp_path / "theirs").rename(tmp_path / "state")
    for _ in range(3):
        await replica.serve(100)
        assert replica.share == 1


async def test_a_rollback_ends_a_ramp_and_a_clear_begins_it_again(tmp_path: Path) -> None:
    """It begins at the first step, in all replicas."""
    one, other = Replica(tmp_path), Replica(tmp_path)
    await one.edit(RAMP)
    await other.start()
    await one.serve(60)
    other.rollouts.roll_back("m", "canary")
    for replica in (other, one):
        await replica.watcher.sync()
        await replica.serve(500)
        assert (replica.share, replica.shown["state"]) == (0, "rolled back")
        assert replica.shown["soaked_seconds"] == 0
    other.rollouts.clear("m")
    assert (other.share, other.shown["step"]) == (1, 1)
    for replica in (other, one, other):
        await replica.watcher.sync()
    assert (one.share, other.share) == (1, 1)
    await one.serve(60)
    assert one.share == 5


async def test_a_ramp_that_was_taken_out_begins_anew(tmp_path: Path) -> None:
    """One with other steps also does so; one with another soak time continues."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP)
    await replica.serve(60)
    await replica.edit(RAMP.replace("[1, 2, 3]", "[1, 3, 3]"))
    assert replica.share == 5
    await replica.edit(RAMP.replace("25%", "30%"))
    assert replica.share == 1
    await replica.edit(RAMP)
    assert replica.share == 1
    await replica.serve(60)
    await replica.edit("n: {variants: {a: {version: 1, weight: 1}}}")
    await replica.edit(RAMP)
    assert replica.share == 1


def record_of(run: object = 1, step: object = 1, soaked: object = 0) -> str:
    return json.dumps({"format": 1, "run": run, "step": step, "soaked": soaked})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"format": 2}', record_of(step=-1), record_of(step=10**9)),
        *(record_of(run=0), record_of(run=10**30), record_of(step=True), record_of(soaked="60")),
        *(record_of(soaked=seconds) for seconds in (inf, -inf, nan, -1, 10**400, 1e300)),
    ],
)
async def test_a_record_that_cannot_be_read_moves_nothing_up(tmp_path: Path, text: str) -> None:
    """It is reported; a start is at the first step."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP)
    await replica.serve(60)
    (record,) = (tmp_path / "state/rollouts/m").glob("*.ramp")
    record.write_text(text)
    later = Replica(tmp_path)
    await later.watcher.check_file()
    assert "the ramp's progress is unknown" in later.watcher.state_problems[0]
    await later.watcher.sync()
    assert later.share == 1


async def test_a_step_that_the_ramp_does_not_have_begins_it_anew(tmp_path: Path) -> None:
    """The variant gets no callers, and the first step is shown; from there it goes up as usual."""
    replica = Replica(tmp_path)
    await replica.edit(RAMP.replace("3]}", "3], auto_promote: true}"))
    await replica.serve(60)
    (record,) = (tmp_path / "state/rollouts/m").glob("*.ramp")
    record.write_text(record_of(step=50))
    await replica.serve(1)
    assert (replica.share, replica.shown["step"]) == (1, 1)
    await replica.serve(60)
    assert (replica.share, replica.shown["step"]) == (5, 2)
