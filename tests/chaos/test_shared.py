"""Two processes on one cache and one state, which neither has to itself."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx

from tests.chaos.callers import callers, put, wait_for_no_problem
from tests.e2e.processes import Cohort, cohort
from tests.waiting import wait_until

ADMIN = {"authorization": "Bearer token"}

ROLLOUTS = "times: {variants: {old: {version: 1, weight: 1}, new: {version: 2, weight: 1}}}\n"


def rolled_back(server: Cohort) -> bool:
    """Return True if the variant `new` is rolled back."""
    variants = httpx.get(server.url + "/models/times").json()["rollout"]["variants"]
    return any(one["rolled_back"] for one in variants if one["name"] == "new")


def test_two_that_start_at_once_share_what_they_keep(models: Path, tmp_path: Path) -> None:
    """Each keeps the other's files whole and follows its decisions; a killed one blocks nothing."""
    for version in (1, 2):
        put(models, version=version)
    (tmp_path / "rollouts.yaml").write_text(ROLLOUTS)
    serve = partial(
        cohort, models, tmp_path, rollouts=tmp_path / "rollouts.yaml", admin_token="token"
    )
    with ExitStack() as stack, ThreadPoolExecutor() as starting:
        one, other = starting.map(lambda _: stack.enter_context(serve()), range(2))
        heard = [stack.enter_context(callers(server)) for server in (one, other)]
        for action, wanted in (("rollback", True), ("clear", False), ("rollback", True)):
            path = f"/admin/rollouts/times/{action}/new"
            httpx.post(one.url + path, headers=ADMIN).raise_for_status()
            wait_until(lambda wanted=wanted: rolled_back(other) is wanted)  # type: ignore[misc]
        one.stop(kill=signal.SIGKILL)
        heard[1].more()
        path = "/admin/rollouts/times/clear/new"
        assert httpx.post(other.url + path, headers=ADMIN).json()["saved"]
        heard[1].more(of=2)
        assert set(heard[1].statuses) == {"200"}
        wait_for_no_problem(other)
        for server in (one, other):
            events = [json.loads(line) for line in server.logged.splitlines()]
            errors = [event for event in events if event["level"] == "error"]
            assert not [one for one in errors if "not answered for" not in one.get("problem", "")]
    kept = [file for file in (tmp_path / "cache").rglob("*.json") if file.is_file()]
    assert kept
    assert all(json.loads(file.read_text()) for file in kept)
