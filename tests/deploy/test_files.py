"""The files that people deploy, read by the programs that they are for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cohort.connections.probe import places_of
from cohort.settings import Settings, variable
from tests.e2e.processes import ROOT

PATH = os.pathsep.join((str(ROOT / ".tools/bin"), os.environ["PATH"], "/usr/sbin", "/sbin"))
PACKAGES = {
    "docker-compose": "Compose v2: make .tools/bin/docker-compose",
    "nginx": "apt-get install --no-install-recommends nginx-light",
    "systemd-analyze": "apt-get install --no-install-recommends systemd",
}


def run(name: str, *arguments: object, **environment: str) -> str:
    """Return a program's output; fail with it if the program fails or is missing."""
    program = shutil.which(name, path=PATH)
    assert program, f"this test needs {name}: {PACKAGES[name]}"
    done = subprocess.run(
        [program, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example() -> dict[str, str]:
    """The variables of .env.example."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def stack(tmp_path: Path) -> dict[str, Any]:
    """The result of Compose for docker-compose.yml with the values of .env.example."""
    printed = run(
        *("docker-compose", "--env-file", ROOT / ".env.example"),
        *("--file", ROOT / "docker-compose.yml", "config", "--format", "json"),
        HOME=str(tmp_path),
    )
    return dict(json.loads(printed))


def seconds(duration: str) -> int:
    """Compose's durations, as far as we write them."""
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration).groups()  # type: ignore[union-attr]
    return 60 * int(minutes or 0) + int(rest or 0)


def test_env_example_names_each_variable_and_its_default() -> None:
    """.env.example lists what docker-compose.yml takes, no more and no less, with its defaults."""
    text = (ROOT / "docker-compose.yml").read_text()
    taken = dict(re.findall(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", text))
    shown = example()
    assert taken.keys() == shown.keys()
    assert {name: taken[name] for name in taken if name != "GRAFANA_PASSWORD"} == {
        name: shown[name] for name in taken if name != "GRAFANA_PASSWORD"
    }


def test_compose_asks_for_a_password(tmp_path: Path) -> None:
    """Compose fails without a password for Grafana: there is no default."""
    with pytest.raises(AssertionError, match="set GRAFANA_PASSWORD"):
        run(
            *("docker-compose", "--env-file", "/dev/null", "--file", ROOT / "docker-compose.yml"),
            *("config", "--quiet"),
            HOME=str(tmp_path),
        )


def test_every_container_is_confined(stack: dict[str, Any]) -> None:
    """Each has a read-only root, no capabilities, limits, bounded logs and a health check."""
    for name, service in stack["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["deploy"]["resources"]["limits"].keys() == {"memory", "pids"}, name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert service.get("healthcheck", {}).get("test") or name == "cohort", name  # the image's
        assert service.get("user", "").split(":")[0] not in {"0", "root"}, name


def test_only_this_machine_is_let_in(stack: dict[str, Any]) -> None:
    """By default every published port is on loopback, and no replica has one."""
    assert "ports" not in stack["services"]["cohort"]
    for service in stack["services"].values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", []))


def test_the_grace_outlasts_the_drain(stack: dict[str, Any]) -> None:
    """Docker and systemd both wait longer than a replica takes to notice, drain and close."""
    environment = stack["services"]["cohort"]["environment"]
    fields = Settings.model_fields
    for name in ("drain_notice_seconds", "drain_seconds"):
        assert float(environment[variable(name)]) == fields[name].default
    longest = sum(fields[name].default for name in ("drain_notice_seconds", "drain_seconds"))
    assert seconds(stack["services"]["cohort"]["stop_grace_period"]) > longest + 5
    unit = (ROOT / "deploy/systemd/cohort.service").read_text()
    timeout = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert timeout
    assert int(timeout[1]) > longest + 5


def test_files_set_only_what_is_a_setting() -> None:
    """Every COHORT_* variable in the image, the stack and the unit is a setting of Cohort."""
    known = {variable(name) for name in Settings.model_fields} | {"COHORT_IMAGE"}
    for name in (
        "Dockerfile",
        "docker-compose.yml",
        ".env.example",
        "deploy/systemd/cohort.service",
    ):
        found = set(re.findall(r"\bCOHORT_[A-Z_]+\b", (ROOT / name).read_text()))
        assert found, name
        assert found <= known, name


@pytest.mark.parametrize("port", ["", "tcp://10.96.12.7:8000"])
def test_the_health_check_asks_the_default_port_where_none_is_set(port: str) -> None:
    """It does so also if Kubernetes sets COHORT_PORT for a Service."""
    assert ("127.0.0.1", 8000) in places_of({"COHORT_PORT": port})


def test_the_health_check_asks_the_port_that_is_listened_on() -> None:
    """The image's own command reads it from COHORT_PORT."""
    check = re.search(r"^HEALTHCHECK .* CMD (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert check
    python, *arguments = json.loads(check[1])
    assert python == "python"
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever).start()
        port = {"COHORT_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *arguments], env=port, check=False)
        server.shutdown()
    assert done.returncode == 0


class Healthy(BaseHTTPRequestHandler):
    """Answers that all is well."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_prometheus_finds_the_balancer(stack: dict[str, Any]) -> None:
    """Its job `balancer` has the name and port at which nginx passes on its counts."""
    scraped = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    name, port = re.findall(r"names: \[(balancer\S+)\]\n +type: A\n +port: (\d+)", scraped)[0]
    assert name in stack["services"]["balancer"]["networks"]["default"]["aliases"]
    conf = (ROOT / "deploy/containers/upstreams.conf").read_text()
    assert f"listen {port};" in conf
    script = (ROOT / "deploy/containers/count.sh").read_text()
    for service in re.findall(rf"server (\w+):{port} resolve", conf):
        assert service in stack["services"]
        assert f"--port {port}" in script


def test_mounted_files_are_there(stack: dict[str, Any]) -> None:
    """All files of the checkout that the stack mounts exist."""
    sources = [
        Path(volume["source"])
        for service in stack["services"].values()
        for volume in service.get("volumes", [])
        if volume["type"] == "bind"
    ]
    assert len(sources) > 5
    assert [source for source in sources if not source.exists()] == []


def test_nginx_takes_the_replicas_of_compose(tmp_path: Path) -> None:
    """`nginx -t` accepts them in the shipped file, less what Debian's is too old for: names."""
    folder = tmp_path / "nginx"
    shutil.copytree(ROOT / "deploy/nginx", folder)
    text = (ROOT / "deploy/containers/upstreams.conf").read_text()
    older = re.sub(r"server (cohort|counter):(\d+) resolve", r"server 127.0.0.1:\2", text)
    assert (older.count("127.0.0.1:800"), older.count("127.0.0.1:8404")) == (9, 1)
    older = older.replace("/var/log/counted/", f"{folder}/counted-")
    (folder / "upstreams.conf").write_text(older.replace("listen 8404", "listen 127.0.0.1:8404"))
    file = folder / "nginx.conf"
    text = re.sub(r"listen (\d+)", r"listen 127.0.0.1:\1", file.read_text())
    file.write_text(re.sub(r"/(run|var/log/nginx)/", f"{folder}/", text))
    run("nginx", "-t", "-q", "-c", file, "-e", tmp_path / "error.log")


def test_the_unit_is_sound_and_tight(tmp_path: Path) -> None:
    """systemd knows every line of the unit, and counts little that an intruder could do."""
    unit = tmp_path / "cohort.service"
    text = (ROOT / "deploy/systemd/cohort.service").read_text()
    there = text.replace("/usr/local/bin/cohort serve", shutil.which("true") or "")
    assert there != text
    unit.write_text(there)
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit)
