"""The folder with the server's decisions went away."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from tests.chaos.callers import problem
from tests.e2e.broken_digits import copy_digits
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

ADMIN = {"authorization": "Bearer secret"}
BODY = {"inputs": {"image": [[[[0.2] * 8] * 8]]}}
HALVES = "digits: {variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}}\n"
MANY = 300


def serving(folder: Path) -> AbstractContextManager[Cohort]:
    """A replica over the files of `folder`."""
    rollouts = folder / "rollouts.yaml"
    return cohort(folder / "models", folder, rollouts=rollouts, admin_token="secret")


def variants_of(server: Cohort, requests: int = MANY) -> Counter[str]:
    """Count the variants that answer `requests` requests, sent one after another."""
    with httpx.Client(base_url=server.url) as client:
        answers = [client.post("/models/digits/predict", json=BODY) for _ in range(requests)]
    return Counter(answer.raise_for_status().json()["variant"] for answer in answers)


def admin(server: Cohort, action: str) -> None:
    """Roll the canary back, or clear that."""
    path = f"{server.url}/admin/rollouts/digits/{action}/canary"
    httpx.post(path, headers=ADMIN).raise_for_status()


def test_the_state_folder_was_renamed_away_under_traffic(tmp_path: Path) -> None:
    """A rolled-back canary got 46 % of traffic within three seconds, and health was "healthy".

    Now it gets no request while the folder is away, when it is back, and after a restart. The
    health and the metrics report that it is away. A clear ends the rollback, also while it is away.
    """
    copy_digits(tmp_path / "models")
    (tmp_path / "rollouts.yaml").write_text(HALVES)
    state, away = tmp_path / "state", tmp_path / "away"
    with serving(tmp_path) as server:
        admin(server, "rollback")
        assert variants_of(server).keys() == {"stable"}
        state.rename(away)
        wait_until(problem(server, "the state folder is gone"))
        assert httpx.get(f"{server.url}/health").json()["status"] == "degraded"
        assert Scrape(server.url).value("state_folder_problems") == 1
        assert variants_of(server).keys() == {"stable"}
        assert not state.exists()
        away.rename(state)
        wait_until(lambda: not Scrape(server.url).value("state_folder_problems"))
        assert variants_of(server).keys() == {"stable"}
    with serving(tmp_path) as server:
        assert variants_of(server).keys() == {"stable"}
        state.rename(away)
        wait_until(problem(server, "the state folder is gone"))
        admin(server, "clear")
        assert variants_of(server).keys() == {"stable", "canary"}
        away.rename(state)
        wait_until(lambda: not Scrape(server.url).value("state_folder_problems"))
        assert variants_of(server).keys() == {"stable", "canary"}
