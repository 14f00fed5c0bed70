"""A replica, a Prometheus with our rules, and incidents that fire alerts there and are cured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import httpx

from tests.deploy.prometheus import Prometheus, configuration, hurried_rules, prometheus
from tests.e2e.processes import Cohort, cohort, free_port
from tests.incidents.recording import Recorded, record

SECONDS = 0.5
"""Between two scrapes."""


class Replica:
    """A replica that can be started again at its address."""

    def __init__(self, models: Path, folder: Path, **settings: Any) -> None:
        self.port = free_port()
        self._models, self._folder, self._settings = models, folder, settings
        self._open = ExitStack()
        folder.mkdir(exist_ok=True)
        self.server: Cohort

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> None:
        """Start it; what ran before has to have ended."""
        started = cohort(self._models, self._folder, ready=ready, port=self.port, **self._settings)
        self.server = self._open.enter_context(started)

    def close(self) -> None:
        """End all that it started."""
        self._open.close()

    def health(self) -> dict[str, Any]:
        """What `curl R/health` shows."""
        health: dict[str, Any] = self.server.get("/health").json()
        return health


@dataclass
class Alert:
    """An alert that an incident is to fire, and its cure to end."""

    name: str
    watched: Prometheus
    began: float = field(default_factory=time)
    fired: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def fires(self, severity: str) -> None:
        """Wait until it does."""
        wanted = f'ALERTS{{alertname="{self.name}",alertstate="firing",severity="{severity}"}}'
        self.watched.wait_for(wanted)
        (alert,) = (
            one
            for one in self.watched.get("alerts")["alerts"]
            if one["labels"]["alertname"] == self.name and one["labels"]["severity"] == severity
        )
        self.labels, self.annotations, self.fired = alert["labels"], alert["annotations"], time()

    def ends(self) -> None:
        """Wait until it does."""
        self.watched.wait_for(f'absent(ALERTS{{alertname="{self.name}"}})')

    def stays_silent(self) -> None:
        """See that it does not fire, though all that is wrong by now has been looked at twice."""
        now = time()
        self.watched.wait_for(f"min(timestamp(service:replicas_ready:count)) > {now + 2 * SECONDS}")
        assert not self.watched.query(f'ALERTS{{alertname="{self.name}"}}')


@dataclass
class Scene:
    """One replica, and the Prometheus that watches it."""

    models: Path
    replica: Replica
    watched: Prometheus
    recorded: list[Recorded] = field(default_factory=list)

    @contextmanager
    def incident(self, name: str, *, keep: bool = True) -> Iterator[Alert]:
        """An incident that fires `name` and ends with its cure; `keep` what the series did."""
        alert = Alert(name, self.watched)
        self.watched.wait_for(f"vector(time()) > {alert.began + 3 * SECONDS}")
        yield alert
        if keep:
            self.recorded.append(record(alert, SECONDS))

    def ask(self, model: str, body: object, *, times: int = 1) -> list[int]:
        """The statuses of so many requests, one after the other."""
        url = f"{self.replica.server.url}/models/{model}/predict"
        with httpx.Client(timeout=60) as client:
            return [client.post(url, json=body).status_code for _ in range(times)]


@contextmanager
def scene(models: Path, folder: Path, *, ready: bool = True, **settings: Any) -> Iterator[Scene]:
    """A started replica, and a Prometheus in a hurry that has scraped it."""
    replica = Replica(models, folder / "replica", **settings)
    try:
        replica.start(ready=ready)
        with watching(folder, [replica]) as watched:
            yield Scene(models, replica, watched)
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
