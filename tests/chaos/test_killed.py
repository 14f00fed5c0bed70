"""A process that is killed at any moment, or stopped for a while, on the state and cache it has."""

from __future__ import annotations

import random
import signal
from functools import partial
from pathlib import Path
from threading import Event, Thread

import httpx

from tests import onnx_models
from tests.chaos.callers import callers, put, wait_for_no_problem
from tests.chaos.lengths import LONG, draw_seed
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

KILLS = 100 if LONG else 2
STOPPED_SECONDS = 20.0 if LONG else 2.0

ADMIN = {"authorization": "Bearer token"}

ROLLOUTS = "times: {variants: {old: {version: 1, weight: 1}, new: {version: 2, weight: 1}}}\n"


class Operator:
    """Rolls back and clears in a loop.

    acknowledged: The last state that was acknowledged as saved. None if the answer to a later
    request was lost, so that it may have been done or not.
    """

    def __init__(self, server: Cohort) -> None:
        self.acknowledged: str | None = None
        self._server = server
        self.thread = Thread(target=self._operate)
        self.thread.start()

    def _operate(self) -> None:
        with httpx.Client(base_url=self._server.url, headers=ADMIN) as client:
            while True:
                for action in ("rollback", "clear"):
                    try:
                        done = client.post(f"/admin/rollouts/times/{action}/new")
                    except httpx.ConnectError:
                        if self._server.process.poll() is not None:
                            return
                        continue
                    except httpx.TransportError:
                        self.acknowledged = None
                        return
                    if done.status_code == httpx.codes.OK and done.json()["saved"]:
                        self.acknowledged = action


def test_killed_at_any_moment_it_comes_back_as_it_was(models: Path, tmp_path: Path) -> None:
    """It is killed in any phase and keeps all acknowledged saves."""
    draw = random.Random(draw_seed())
    for version in (1, 2):
        put(models, version=version)
    rollouts = tmp_path / "rollouts.yaml"
    rollouts.write_text(ROLLOUTS)
    serve = partial(cohort, models, tmp_path, rollouts=rollouts, admin_token="token")
    acknowledged = None
    for _ in range(KILLS):
        ready = acknowledged is not None or draw.random() < 0.5
        with serve(ready=ready) as server:
            if ready:
                check(server, acknowledged)
            operator = Operator(server)
            Event().wait(draw.uniform(0.0, 0.5))
            server.stop(kill=signal.SIGKILL)
            operator.thread.join()
            acknowledged = operator.acknowledged
    with serve() as server, callers(server) as heard:
        check(server, acknowledged)
        heard.more()
    assert set(heard.statuses) == {"200"}


def check(server: Cohort, acknowledged: str | None) -> None:
    """Check that there is no problem and that the last acknowledged state holds."""
    wait_for_no_problem(server)
    variants = httpx.get(server.url + "/models/times").json()["rollout"]["variants"]
    (rolled_back,) = [one["rolled_back"] for one in variants if one["name"] == "new"]
    assert acknowledged is None or rolled_back == (acknowledged == "rollback")


def test_stopped_for_a_while_it_goes_on(models: Path, tmp_path: Path, cache: Path) -> None:
    """No caller gets a wrong answer or one after its deadline, and the server recovers."""
    put(models)
    onnx_models.save(onnx_models.slow(nodes=40), models / "slow/1/model.onnx")
    (models / "slow/config.yaml").write_text("batching: {max_batch_size: 1}\n")
    with (
        cohort(models, tmp_path, cache=cache, inspection_seconds=60) as server,
        callers(server) as heard,
        callers(
            server, "slow", count=8, factor_of=lambda _: 1, row=(0, 0, 1), timeout_ms=1000
        ) as late,
    ):
        late.more()
        for _ in range(10):  # until a request was waiting at that moment
            server.process.send_signal(signal.SIGSTOP)
            Event().wait(STOPPED_SECONDS)
            server.process.send_signal(signal.SIGCONT)
            heard.more()
            late.more()
            if late.statuses["504"]:
                break
        assert late.statuses["504"], "those who waited had no time left"
        server.wait_for("/health/ready")
        wait_until(lambda: not Scrape(server.url).value("model_unpredictable", model="times"))
    assert set(heard.statuses) == {"200"}
    assert set(late.statuses) <= {"200", "429", "504"}
