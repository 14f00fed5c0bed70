"""Start a real Prometheus and a real Alertmanager on our own configuration."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ruamel.yaml import YAML

from tests.e2e.processes import ROOT, end, free_port
from tests.waiting import PATIENCE, wait_until

DEPLOY = ROOT / "deploy"
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}


def program(name: str) -> str:
    """Return the path of a program, or fail with the name of its package."""
    if (path := shutil.which(name)) is None:
        raise AssertionError(
            f"these tests need {name}: apt-get install --no-install-recommends {PACKAGES[name]}"
        )
    return path


def read_yaml(path: Path) -> Any:
    """A file as plain values."""
    return YAML(typ="safe", pure=True).load(path)


def write_yaml(path: Path, content: object) -> Path:
    """The other way round."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = False, 1_000_000
    with path.open("w") as file:
        yaml.dump(content, file)
    return path


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float

    def label(self, name: str) -> str:
        """Its value; Prometheus leaves empty ones out."""
        return self.labels.get(name, "")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A started one."""

    client: httpx.Client  # kept open: these are many small questions
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of its API's answer."""
        answer = self.client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer['error']}"
        return answer["data"]

    def query(self, expression: str, *, at: float | None = None) -> list[Sample]:
        """The instant vector at a time of day, now by default; a scalar as a vector of one."""
        when = {} if at is None else {"time": f"{at:.3f}"}
        data = self.get("query", query=expression, **when)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(one["metric"], float(one["value"][1])) for one in data["result"]]

    def value(self, expression: str) -> float:
        """The sum of the vector, 0 where it is empty."""
        return sum(sample.value for sample in self.query(expression))

    def wait_for(self, expression: str) -> list[Sample]:
        """Ask until the vector is not empty."""
        try:
            return wait_until(lambda: self.query(expression))
        except TimeoutError:
            raise AssertionError(
                f"never came to hold: {expression}; log:\n{self.log.read_text()}"
            ) from None


def configuration(
    targets: Mapping[str, Sequence[str]], *, rules: Sequence[Path], seconds: float = 1
) -> Any:
    """Return the shipped prometheus.yml, scraping every `seconds`, with these `targets` only.

    A target is "host:port" by job; the job `alertmanager` also receives the alerts.
    """
    config = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")
    often = f"{seconds * 1000:.0f}ms"
    config["global"] = {
        "scrape_interval": often,
        "scrape_timeout": often,
        "evaluation_interval": often,
    }
    config["rule_files"] = [str(path) for path in rules]
    for job in config["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": list(targets.get(job["job_name"], []))}]
    managers = config["alerting"]["alertmanagers"]
    managers[0]["static_configs"] = [{"targets": list(targets.get("alertmanager", []))}]
    return config


RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))


def hurried_rules(folder: Path) -> list[Path]:
    """A copy of our rules whose alerts fire at once: budgets look 6 s back, others at most 20 s."""
    copies = folder / "rules"
    copies.mkdir()
    for path in RULES:
        text = re.sub(r"^( +for:) .*$", r"\1 0s", path.read_text(), flags=re.MULTILINE)
        if path.name == "budgets.yml":
            text = re.sub(r"\[\d+[mhd]\]", "[6s]", text)
        if path.name == "alerts.yml":
            text = re.sub(r"\[\d+m\]", "[20s]", text)
        (copies / path.name).write_text(text)
    return sorted(copies.iterdir())


@contextmanager
def prometheus(folder: Path, config: object) -> Iterator[Prometheus]:
    """Run one on a free port, with its data in `folder`."""
    address = f"127.0.0.1:{free_port()}"
    file = write_yaml(folder / "prometheus.yml", config)
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with (
        _running(command, log, f"http://{address}/-/ready"),
        httpx.Client(base_url=f"http://{address}", timeout=PATIENCE) as client,
    ):
        yield Prometheus(client, log)


@contextmanager
def alertmanager(folder: Path, config: object) -> Iterator[str]:
    """Run one on a free port; gives its host and port."""
    address = f"127.0.0.1:{free_port()}"
    file = write_yaml(folder / "alertmanager.yml", config)
    command = [
        program("prometheus-alertmanager"),
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",  # no port for peers
        "--log.level=warn",
    ]
    with _running(command, folder / "alertmanager.log", f"http://{address}/-/ready"):
        yield address


@contextmanager
def _running(command: Sequence[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stderr, stderr=stderr)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()}"
            return _answers(ready)

        wait_until(is_ready)
        yield
    finally:
        end(process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
