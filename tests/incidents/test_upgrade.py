"""Cohort itself is replaced, by a newer version and back, under traffic."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.chaos.callers import wait_for_no_problem
from tests.deploy.balancers import Calls, calling, nginx
from tests.e2e.broken_digits import copy_digits
from tests.e2e.processes import ROOT, Cohort, cohort, free_port
from tests.waiting import PATIENCE, wait_until

OLD = "c8c3fc3"
"""The old version: the last commit before decisions ended with a separate record."""

ADMIN = {"authorization": "Bearer secret"}
BODY = json.dumps({"model": "digits", "inputs": {"image": [[[[0.2] * 8] * 8]]}}).encode()
HALVES = "digits: {variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}}\n"


@pytest.fixture(scope="module")
def old_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The former version's sources, from git."""
    folder = tmp_path_factory.mktemp("old")
    archive = folder / "old.tar"
    git = ["git", "-C", str(ROOT), "archive", f"--output={archive}", OLD, "app"]
    if subprocess.run(git, check=False, capture_output=True).returncode:
        pytest.skip(f"this checkout has no history: git fetch --unshallow brings {OLD}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder


class Replicas:
    """Three places behind the balancer, with one state folder and one cache folder."""

    def __init__(self, folder: Path, old: Path) -> None:
        self.ports = [free_port() for _ in range(3)]
        self.running: dict[int, tuple[ExitStack, Cohort]] = {}
        self._folder, self._old = folder, old

    def start(self, place: int, *, old: bool) -> None:
        """Start a replica of one of the versions there, and wait until it is ready."""
        stack = ExitStack()
        self.running[place] = stack, stack.enter_context(self._replica(self.ports[place], old=old))

    def replace(self, place: int, *, old: bool) -> None:
        """Stop the one there, and start one of the other version."""
        self.stop(place)
        self.start(place, old=old)

    def stop(self, place: int) -> None:
        """Stop the one there as an upgrade does."""
        stack, replica = self.running.pop(place)
        with stack:
            assert replica.stop() == 0, replica.logged

    def _replica(self, port: int, *, old: bool) -> AbstractContextManager[Cohort]:
        sources = self._old if old else ROOT
        return cohort(
            self._folder / "models",
            self._folder,
            port=port,
            under=("env", "-C", str(sources), f"PYTHONPATH={sources}"),
            rollouts=self._folder / "rollouts.yaml",
            drain_notice_seconds=1.5,
            admin_token="secret",
        )

    def ask(self, place: int, action: str) -> None:
        """Have the replica there roll the canary back, or clear that."""
        url = f"{self.running[place][1].url}/admin/rollouts/digits/{action}/canary"
        httpx.post(url, headers=ADMIN, timeout=PATIENCE).raise_for_status()

    def rolled_back(self, place: int) -> bool:
        """Return True if the replica there sends the canary no requests."""
        url = f"{self.running[place][1].url}/admin/rollouts"
        (canary,) = [
            one
            for one in httpx.get(url, headers=ADMIN).json()["digits"]["variants"]
            if one["name"] == "canary"
        ]
        return bool(canary["rolled_back"])

    def expect(self, *, rolled_back: bool) -> None:
        """Wait until all follow the decision; no replica has a problem with the others' records."""
        wait_until(lambda: all(self.rolled_back(one) is rolled_back for one in self.running))
        for _, one in self.running.values():
            wait_for_no_problem(one)


@contextmanager
def replicas(folder: Path, old: Path, count: int = 3) -> Iterator[Replicas]:
    """Start `count` replicas of the old version; the other places stay empty."""
    copy_digits(folder / "models")
    (folder / "rollouts.yaml").write_text(HALVES)
    started = Replicas(folder, old)
    try:
        for place in range(count):
            started.start(place, old=True)
        yield started
    finally:
        for stack, _ in started.running.values():
            stack.close()


async def test_cohort_was_upgraded_by_one_replica(tmp_path: Path, old_sources: Path) -> None:
    """No request fails while a new version next to the old one replaces it.

    Both are behind one balancer and use one state folder; each follows the other's decisions.
    """
    with (
        replicas(tmp_path, old_sources, count=1) as fleet,
        nginx(fleet.ports, tmp_path) as balancer,
    ):
        async with calling(balancer.port, {"digits": BODY}) as calls:
            await asyncio.to_thread(upgrade_one, fleet)
    assert not calls.failed
    assert calls.versions["1"]


def upgrade_one(fleet: Replicas) -> None:
    """Put a new replica next to the old one, with decisions on both sides, and then replace it."""
    fleet.ask(0, "rollback")  # by the old version, in its words
    fleet.start(1, old=False)
    fleet.expect(rolled_back=True)
    fleet.ask(1, "clear")
    fleet.expect(rolled_back=False)
    fleet.ask(0, "rollback")
    fleet.expect(rolled_back=True)
    fleet.stop(0)
    fleet.expect(rolled_back=True)


@pytest.mark.long
async def test_cohort_was_upgraded_and_rolled_back_under_traffic(
    tmp_path: Path, old_sources: Path
) -> None:
    """No request fails while each replica is replaced by the new version, and then by the old one.

    The decisions of one version hold in the other. This had not been tried.
    """
    with replicas(tmp_path, old_sources) as fleet, nginx(fleet.ports, tmp_path) as balancer:
        async with calling(balancer.port, {"digits": BODY}) as calls:
            await asyncio.to_thread(upgrade_and_return, fleet, calls)
    assert not calls.failed
    assert set(calls.kinds) == {"digits, new", "digits, reused"}


def upgrade_and_return(fleet: Replicas, calls: Calls) -> None:
    """The way to the new version and back, while decisions are made on both sides."""
    fleet.ask(0, "rollback")  # by the old version, in its words
    fleet.expect(rolled_back=True)
    fleet.replace(0, old=False)
    fleet.expect(rolled_back=True)  # old and new side by side
    fleet.ask(0, "clear")
    fleet.expect(rolled_back=False)
    fleet.ask(0, "rollback")  # by the new one
    fleet.expect(rolled_back=True)
    for place in (1, 2):
        fleet.replace(place, old=False)
    fleet.expect(rolled_back=True)
    canary = calls.versions["2"]
    for place in range(3):
        fleet.replace(place, old=True)  # and back
    fleet.expect(rolled_back=True)
    assert calls.versions["2"] == canary  # no request reached the rolled-back version
