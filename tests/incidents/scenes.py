"""A replica, a Prometheus with our rules, and incidents that fire alerts there and are cured."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import httpx

from tests.deploy.prometheus import Prometheus, configuration, hurried_rules, prometheus
from tests.e2e.processes import Cohort, cohort, free_port
from tests.incidents import runbook
from tests.incidents.recording import ASKED, Case, Recorder
from tests.waiting import PATIENCE, wait_until

SECONDS = 1.0
"""Seconds between two scrapes."""
TOKEN = "secret"
"""The operators' token."""


class Replica:
    """A replica that can be started again at its address."""

    def __init__(self, models: Path, folder: Path, **settings: Any) -> None:
        self.port = free_port()
        self.models, self.folder, self._settings = models, folder, settings
        self._open = ExitStack()
        folder.mkdir(exist_ok=True)
        self.server: Cohort

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> None:
        """Start it; what ran before has to have ended."""
        settings = {"admin_token": TOKEN, **self._settings}
        started = cohort(self.models, self.folder, ready=ready, port=self.port, **settings)
        self.server = self._open.enter_context(started)

    def hang(self) -> None:
        """Stop it, so that it neither answers nor takes SIGTERM."""
        self.server.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End all that it started."""
        self._open.close()


@dataclass
class Alert:
    """An alert that an incident is to fire, and that is to end with the cure in the runbook."""

    name: str
    watched: Prometheus
    replica: Replica
    fired: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    def fires(self, severity: str) -> None:
        """Wait until it does."""
        wanted = f'ALERTS{{alertname="{self.name}",alertstate="firing",severity="{severity}"}}'
        labels = dict(self.watched.wait_for(wanted)[0].labels)
        for name in ("__name__", "alertstate"):
            labels.pop(name)
        self.labels = labels
        self._goes_on()
        self.fired = time()
        self._goes_on()

    def _goes_on(self) -> None:
        """Wait for two more scrapes of Prometheus, if events are recorded."""
        until = time() + (2 * SECONDS if ASKED else 0)
        self.watched.wait_for(f"vector(time()) >= {until}")

    def ends(self) -> None:
        """Wait until it does."""
        self.watched.wait_for(f'absent(ALERTS{{alertname="{self.name}"}})')

    def stays_silent(self) -> None:
        """Check that the alert does not fire after two evaluations of the present fault."""
        now = time()
        self.watched.wait_for(f"min(timestamp(service:replicas_ready:count)) > {now + 2 * SECONDS}")
        assert not self.watched.query(f'ALERTS{{alertname="{self.name}"}}')

    def quoted(self, text: str) -> str:
        """Return text that must be in the alert's runbook entry."""
        return runbook.quoted(self.name, text)

    def run(self, command: str, *, replica: Replica | None = None) -> str:
        """Return the output of a command of its entry, for a replica and the alert's labels."""
        asked = replica or self.replica
        return runbook.run(
            self.name,
            command,
            R=f"http://{asked.address}",
            pid=asked.server.process.pid,
            COHORT_ADMIN_TOKEN=TOKEN,
            COHORT_MODELS=asked.models,
            COHORT_STATE=asked.folder / "state",
            **self.labels,
        )

    def logged(self, event: str) -> dict[str, Any]:
        """Wait for a log event that the entry mentions; return its last line."""
        self.quoted(event)

        def found() -> list[dict[str, Any]]:
            lines = self.replica.server.logged.splitlines(keepends=True)
            told = [json.loads(line) for line in lines if line.endswith("\n")]
            return [line for line in told if line["event"] == event]

        return wait_until(found)[-1]


@dataclass
class Scene:
    """One replica, and the Prometheus that watches it."""

    replica: Replica
    watched: Prometheus
    recorded: list[Case] = field(default_factory=list)

    @contextmanager
    def incident(self, name: str) -> Iterator[Alert]:
        """An incident that fires `name` and ends with its cure."""
        alert, recorder = self._begin(name)
        yield alert
        self.recorded.append(recorder.fires(alert.fired, alert.labels))

    @contextmanager
    def quiet(self, name: str, what: str) -> Iterator[None]:
        """`what` happens, and `name` does not fire, as one might fear."""
        alert, recorder = self._begin(name)
        yield
        alert.stays_silent()
        self.recorded.append(recorder.silent(what))

    def _begin(self, name: str) -> tuple[Alert, Recorder]:
        recorder = Recorder(self.watched, name, SECONDS)
        self.watched.wait_for(f"vector(time()) > {recorder.began + 3 * SECONDS}")
        return Alert(name, self.watched, self.replica), recorder

    def ask(self, model: str, body: object, *, times: int = 1) -> list[int]:
        """Return the statuses of `times` requests, sent one after another."""
        url = f"{self.replica.server.url}/models/{model}/predict"
        with httpx.Client(timeout=PATIENCE) as client:
            return [client.post(url, json=body).status_code for _ in range(times)]

    def admin(self, path: str) -> None:
        """Send an operator's request."""
        url, token = f"{self.replica.server.url}/admin/{path}", f"Bearer {TOKEN}"
        httpx.post(url, headers={"authorization": token}, timeout=PATIENCE).raise_for_status()


@contextmanager
def scene(models: Path, folder: Path, *, ready: bool = True, **settings: Any) -> Iterator[Scene]:
    """A started replica, and a Prometheus in a hurry that has scraped it."""
    replica = Replica(models, folder / "replica", **settings)
    try:
        replica.start(ready=ready)
        with watching(folder, [replica]) as watched:
            yield Scene(replica, watched)
    finally:
        replica.close()


@contextmanager
def watching(folder: Path, replicas: list[Replica], **targets: list[str]) -> Iterator[Prometheus]:
    """A Prometheus in a hurry that has scraped all of `replicas`."""
    targets["cohort"] = [one.address for one in replicas]
    config = configuration(targets, rules=hurried_rules(folder), seconds=SECONDS)
    with prometheus(folder, config) as watched:
        watched.wait_for(f'sum(up{{job="cohort"}}) == {len(replicas)}')
        watched.wait_for("service:replicas_ready:count")
        yield watched
