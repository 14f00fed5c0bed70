"""The rendered container as a plain process: a sample of `make kubernetes`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.chaos.callers import callers, put
from tests.e2e.processes import cohort
from tests.kubernetes.pod import SERVICE_LINKS, write_volume
from tests.kubernetes.rendered import container, environment, overlay, with_tools
from tests.waiting import wait_until

pytestmark = with_tools

TO_THE_FIRST = "times: {variants: {new: {version: 2, weight: 0}, old: {version: 1, weight: 1}}}\n"


def test_the_container_serves_follows_its_config_map_and_drains(tmp_path: Path) -> None:
    """With its variables, amid those of a Service named `cohort`: from the first probe to SIGTERM.

    The kubelet swaps `..data` of the volume of rollouts.yaml; callers then get the other version.
    After SIGTERM the readiness probe fails, and callers are still answered.
    """
    of = container(overlay("cpu"))
    mounts = {one["mountPath"]: tmp_path / one["name"] for one in of["volumeMounts"]}
    for folder in mounts.values():
        folder.mkdir()
    for version in (1, 2):
        put(tmp_path / "models", version=version, config="versions: all\n")
    rendered = overlay("cpu")["ConfigMap", "cohort-config"]["data"]
    write_volume(tmp_path / "config", rendered)
    settings = SERVICE_LINKS | environment(of)
    for name, value in settings.items():
        path = Path(value)
        at = path if value in mounts else path.parent
        if str(at) in mounts:
            settings[name] = str(mounts[str(at)] / path.relative_to(at))
    own: dict[str, Any] = {
        name.removeprefix("COHORT_").lower(): value
        for name, value in settings.items()
        if name.startswith("COHORT_") and name not in {"COHORT_PORT", "COHORT_MODELS"}
    }
    own |= {"grpc_port": "0", "watchdog_seconds": "0"}
    with cohort(settings["COHORT_MODELS"], tmp_path, **own) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert of[probe]["httpGet"]["port"] == "http"
            assert server.get(of[probe]["httpGet"]["path"]).status_code == 200
        with callers(server) as heard:
            heard.more(of=2)  # the newest, without a rollout
            write_volume(tmp_path / "config", {"rollouts.yaml": TO_THE_FIRST})
            heard.more(of=1)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.get(of["readinessProbe"]["httpGet"]["path"]).is_server_error)
            heard.more()
        assert set(heard.statuses) == {"200"}
        assert server.process.wait(60) == 0
    assert "is not a setting" not in server.logged
