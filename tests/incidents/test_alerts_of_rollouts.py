"""Alerts about rollouts, fired on purpose; see test_alerts.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.processes import MODELS
from tests.incidents.recording import Case
from tests.incidents.scenes import Scene, scene
from tests.receiver import Receiver
from tests.waiting import wait_until

ROLLOUT = "iris: {variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}}\n"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """The receiver of notifications."""
    started = Receiver(200)
    yield started
    started.close()


@pytest.fixture(scope="module")
def shop(
    tmp_path_factory: pytest.TempPathFactory, recorded: list[Case], receiver: Receiver
) -> Iterator[Scene]:
    """One replica with a rollout, which sends its decisions to the receiver."""
    folder = tmp_path_factory.mktemp("shop")
    models, file, secret = folder / "models", folder / "rollouts.yaml", folder / "secret"
    for version in "12":
        shutil.copytree(MODELS / "iris" / "1", models / "iris" / version)
    file.write_text(ROLLOUT)
    secret.write_text("the former one")
    settings: dict[str, Any] = {
        "rollouts": file,
        "webhooks": receiver.url,
        "webhook_secret_file": secret,
    }
    with scene(models, folder, **settings) as opened:
        yield opened
        recorded += opened.recorded


def roll_back(shop: Scene) -> None:
    """Clear the rollback and roll back again, as an operator does."""
    shop.admin("rollouts/iris/clear/canary")
    shop.admin("rollouts/iris/rollback/canary")


@pytest.mark.long
def test_the_state_folder_was_gone(shop: Scene) -> None:
    """A rolled-back canary got 46 % of traffic without an alert. Now it is a ticket.

    The runbook: /health reports that it is gone; put it back before any restart.
    """
    state = shop.replica.folder / "state"
    with shop.quiet("CohortStateFolder", "a canary is rolled back, and its rollback is recorded"):
        roll_back(shop)
        wait_until(lambda: list(state.rglob("2.json")))
    with shop.incident("CohortStateFolder") as alert:
        state.rename(state.with_name("away"))
        alert.fires("warning")
        health = json.loads(alert.run("curl $R/health"))
        assert "the state folder is gone" in health["problems"][0]
        assert "No such file" in alert.run("ls -la $COHORT_STATE/rollouts")
        assert health["rolled_back"] == {"iris/2": "by an operator"}
        state.with_name("away").rename(state)
        assert ".id" in alert.run("ls -la $COHORT_STATE/rollouts")
        alert.ends()


@pytest.mark.long
def test_a_receiver_refused_what_it_was_sent(shop: Scene, receiver: Receiver) -> None:
    """Its secret was changed, and only the log had the failed webhooks. Now it is a ticket.

    The runbook: the log has the status; a changed secret is read within seconds.
    """
    with shop.quiet("CohortWebhooksFail", "a receiver takes what it is sent, once at a second try"):
        receiver.statuses[:] = [503, 200]
        told = len(receiver.got)
        roll_back(shop)
        wait_until(lambda: len(receiver.got) == told + 2)
        shop.watched.wait_for("sum(webhook_waiting) == 0")
    with shop.incident("CohortWebhooksFail") as alert:
        receiver.statuses[:] = [401]
        roll_back(shop)
        alert.fires("warning")
        assert alert.logged("webhook not delivered")["reason"] == alert.quoted("status 401")
        (shop.replica.folder.parent / "secret").write_text("the one that the receiver has now")
        assert alert.logged("webhook secret read")
        receiver.statuses[:] = [200]
        told = len(receiver.got)
        roll_back(shop)
        wait_until(lambda: len(receiver.got) > told)
        alert.ends()


@pytest.mark.long
def test_a_receiver_was_away(shop: Scene, receiver: Receiver) -> None:
    """It could be retried for an hour without an alert. Now it is a ticket after minutes.

    The runbook: the log has the connection's error, and the metrics have the waiting webhooks.
    Bring the receiver back, and they are sent.
    """
    with shop.incident("CohortWebhooksFail") as alert:
        receiver.statuses[:] = [502]
        roll_back(shop)
        alert.fires("warning")
        assert alert.logged("webhook failed, trying again")["reason"] == "status 502"
        waiting = alert.run("curl $R/metrics | grep webhook_")
        assert f'webhook_waiting{{receiver="{receiver.name}"}} 1.0' in waiting
        receiver.statuses[:] = [200]
        alert.ends()
