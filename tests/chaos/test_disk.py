"""State and cache on a disk that is full, read-only, or has what was torn or not ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cohort.batching import BatchPolicy
from cohort.inspection.findings import Finding, Findings
from cohort.profiling.kept import KeptProfile
from cohort.profiling.store import Store
from cohort.rollouts import Decision, DecisionStore
from tests.chaos.callers import callers, problem, put, wait_for_no_problem
from tests.chaos.namespaces import inside, mounted, path_outside
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

ADMIN = {"authorization": "Bearer token"}

ROLLOUTS = "times: {variants: {old: {version: 1, weight: 1}, new: {version: 2, weight: 1}}}\n"


@pytest.fixture
def two(models: Path) -> Path:
    """A model with a rollout between two versions."""
    for version in (1, 2):
        put(models, version=version)
    (models.parent / "rollouts.yaml").write_text(ROLLOUTS)
    return models


def admin(server: Cohort, action: str) -> bool:
    """Roll back or clear the new variant; whether that was saved."""
    path = f"/admin/rollouts/times/{action}/new"
    response = httpx.post(server.url + path, headers=ADMIN).raise_for_status()
    return bool(response.json()["saved"])


def saved(server: Cohort) -> bool:
    """Whether all that was decided is saved."""
    return bool(httpx.get(server.url + "/models/times").json()["rollout"]["saved"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces")
def test_a_full_or_read_only_disk_is_said_and_tried_again(two: Path, tmp_path: Path) -> None:
    """It starts, serves and decides all the same; decisions are saved as soon as they can be."""
    disk = tmp_path / "disk"
    full = 'mount -t tmpfs -o size=64k tmpfs "$0"; head -c 1M /dev/zero >"$0/filler" || true'
    with (
        cohort(
            two,
            tmp_path,
            under=mounted(disk, full),
            state=disk / "state",
            cache=disk / "cache",
            rollouts=two.parent / "rollouts.yaml",
            admin_token="token",
        ) as server,
        callers(server) as heard,
    ):
        heard.more()
        assert not admin(server, "rollback")
        wait_until(problem(server, "cannot be written to the state folder: No space left"))
        assert Scrape(server.url).value("state_folder_problems")
        heard.more()
        path_outside(server, disk / "filler").unlink()
        wait_until(lambda: saved(server))
        wait_for_no_problem(server)

        inside(server, "mount", "-o", "remount,ro", str(disk))
        assert not admin(server, "clear")
        wait_until(problem(server, "cannot be removed from the state folder: Read-only"))
        heard.more()
        inside(server, "mount", "-o", "remount,rw", str(disk))
        wait_until(lambda: saved(server))
        wait_until(lambda: not Scrape(server.url).value("state_folder_problems"))
        assert heard.versions[2]
    assert set(heard.statuses) == {"200"}
    assert "profiles cannot be kept" in server.logged


def test_what_was_torn_or_is_not_ours_is_said_and_does_no_harm(two: Path, tmp_path: Path) -> None:
    """The files are decisions with a rollout and without, profiles, findings, and the rest."""
    with cohort(two, tmp_path):
        pass
    torn = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert torn
    for file in torn:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    decisions = tmp_path / "state/rollouts"
    for model, version, text in (
        ("times", 2, '{"version": 2, "reas'),
        ("gone", 3, ""),
        ("gone", 4, json.dumps({"format": 2, "reason": "errors"})),
    ):
        (decisions / model).mkdir(parents=True, exist_ok=True)
        (decisions / model / f"{version}.json").write_text(text)
    with (
        cohort(two, tmp_path, rollouts=two.parent / "rollouts.yaml", admin_token="token") as server,
        callers(server) as heard,
    ):
        heard.more()
        assert set(heard.versions) == {1}, "who decided about version 2 knew why"
        for one in ("times/2.json", "gone/3.json", "gone/4.json"):
            assert problem(server, one)()
            assert one in server.logged
        assert problem(server, "another release wrote it")()
        assert Scrape(server.url).value("state_folder_problems") == 3
        assert admin(server, "clear")
        for version in (3, 4):
            (decisions / f"gone/{version}.json").unlink()
        wait_until(lambda: not Scrape(server.url).value("state_folder_problems"))
        heard.more(of=2)
    assert set(heard.statuses) == {"200"}


# -- the readers, with every beginning of a file


def decision(folder: Path) -> Iterator[tuple[Path, Callable[[], bool]]]:
    store = DecisionStore(folder)
    store.record("times", Decision.now(2, "errors", "4.00% of 900 requests against 1.00%"))
    yield from (
        (file, lambda: store.read()[0]["times"][2].reason == "unreadable")
        for file in folder.rglob("*.json")
    )


def profile(folder: Path) -> Iterator[tuple[Path, Callable[[], bool]]]:
    store, key = Store(folder), {"model": "0" * 64}
    store.write(key, KeptProfile("2026-11-22T10:00:00+00:00", {1: 0.1, 2: 0.11}, 2, "", ""))
    yield from (
        (file, lambda: store.read(key, BatchPolicy()) is None) for file in folder.rglob("*.json")
    )


def finding(folder: Path) -> Iterator[tuple[Path, Callable[[], bool]]]:
    findings, key = Findings(folder), {"model": "0" * 64}
    findings.write(key, Finding({"weights.bin": "1" * 64}, ""))
    yield from ((file, lambda: findings.read(key) is None) for file in folder.rglob("*.json"))


@pytest.mark.parametrize("kept", [decision, profile, finding])
def test_a_file_torn_at_any_byte_counts_as_unreadable(
    tmp_path: Path, kept: Callable[[Path], Iterator[tuple[Path, Callable[[], bool]]]]
) -> None:
    """No beginning of a file is taken for a whole one."""
    ((file, unusable),) = kept(tmp_path)
    content = file.read_bytes()
    assert not unusable()
    for end in range(len(content)):
        file.write_bytes(content[:end])
        assert unusable(), content[:end]
