"""Run a pod from its manifest: runc replaces containerd, and this module the kubelet.

runc applies the manifest: command, environment, user, no capabilities, a read-only root, volumes,
limits of memory and CPU, and a network namespace. This module runs init containers, probes at their
periods, `preStop` and then SIGTERM, within the grace.
The seccomp profile of `RuntimeDefault` is containerd's; it is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.kubernetes.image import ENVIRONMENT, image_mounts

UNITS: dict[str, int | Fraction] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": Fraction(1, 1000)}

CGROUP = "/cohort-kubernetes"
"""The parent of all containers' cgroups."""

SERVICE_LINKS = {
    "COHORT_SERVICE_HOST": "10.96.12.7",
    "COHORT_SERVICE_PORT": "80",
    "COHORT_SERVICE_PORT_HTTP": "80",
    "COHORT_PORT": "tcp://10.96.12.7:80",
    "COHORT_PORT_80_TCP": "tcp://10.96.12.7:80",
    "COHORT_PORT_80_TCP_PROTO": "tcp",
    "COHORT_PORT_80_TCP_PORT": "80",
    "COHORT_PORT_80_TCP_ADDR": "10.96.12.7",
    "COHORT_PODS_SERVICE_HOST": "None",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
}
"""Variables of the Services, which a manifest without `enableServiceLinks: false` gets."""


def quantity(text: str) -> int | Fraction:
    """Return the number of a quantity such as 2Gi or 500m."""
    for suffix, factor in UNITS.items():
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text)


def write_volume(folder: Path, files: Mapping[str, str]) -> None:
    """Write a ConfigMap's volume, or replace it, as the kubelet does.

    The files are in a separate folder, which the link `..data` names; each file's name is a
    link through it. An update swaps `..data` alone, and then removes the former folder.
    """
    former = (folder / "..data").resolve() if (folder / "..data").exists() else None
    inner = folder / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S.%f}"
    inner.mkdir(parents=True)
    for name, text in files.items():
        (inner / name).write_text(text)
    link = folder / "..data_tmp"
    link.symlink_to(inner.name)
    link.rename(folder / "..data")
    for name in files:
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"..data/{name}")
    if former:
        shutil.rmtree(former)


class Pod:
    """One pod.

    name: The name of the pod, its cgroup and its network namespace.
    address: The address of the pod.
    spec: The spec of the pod, from a rendered Deployment.
    files: The files of each ConfigMap, by its name.
    folder: Takes the volumes, the log and runc's state.
    image: The root of every image that the pod names.

    ready: True while the readiness probe passes.
    restarts: Number of restarts that the liveness or startup probe asked for.
    stopping: True once the pod is deleted.
    """

    def __init__(
        self,
        name: str,
        address: str,
        spec: Mapping[str, Any],
        files: Mapping[str, Mapping[str, str]],
        *,
        folder: Path,
        image: Path,
    ) -> None:
        self.name, self.address = name, address
        self.ready = self.stopping = False
        self.restarts = 0
        self._spec, self._files, self._image = spec, files, image
        self._folder = folder / name
        self._process: asyncio.subprocess.Process | None = None
        self._probes: asyncio.Task[None] | None = None
        self.container = dict(spec["containers"][0])

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def volume(self, name: str) -> Path:
        """Return the folder of a volume."""
        return self._folder / "volumes" / name

    async def start(self) -> None:
        """Make the volumes, run the init containers, start the server and its probes."""
        for one in self._spec["volumes"]:
            self._make_volume(one)
        for one in self._spec.get("initContainers", ()):
            process = await self._run(one)
            status = await process.wait()
            assert status == 0, self.log
        self._process = await self._run(self.container)
        self._probes = asyncio.create_task(self._probe())

    async def wait_ready(self) -> None:
        """Wait until the readiness probe passes."""
        while not self.ready:
            assert self._process
            assert self._process.returncode is None, self.log
            assert self._probes
            if self._probes.done():
                await self._probes
            await asyncio.sleep(0.1)

    async def stop(self) -> int:
        """Delete the pod as the kubelet does; return the exit status of the server."""
        assert self._process
        self.stopping = True
        grace = float(self._spec["terminationGracePeriodSeconds"])
        async with asyncio.timeout(grace):  # a kubelet would kill
            hook = self.container["lifecycle"]["preStop"]
            await asyncio.sleep(hook["sleep"]["seconds"])
            await self._runc("kill", self._id(self.container), "TERM")
            status = await self._process.wait()
        await self._end_probes()
        self.ready = False
        return status

    async def kill(self) -> None:
        """End the pod at once, as the loss of its node does."""
        await self._end_probes()
        if self._process and self._process.returncode is None:
            with suppress(AssertionError):  # it has just ended
                await self._runc("kill", self._id(self.container), "KILL")
            await self._process.wait()

    def port(self, name: str = "http") -> int:
        """Return the port of that name."""
        return next(
            int(one["containerPort"]) for one in self.container["ports"] if one["name"] == name
        )

    # -- probes

    async def _probe(self) -> None:
        startup = self.container["startupProbe"]
        for _ in range(startup["failureThreshold"]):
            if await self._passes(startup):
                break
            await asyncio.sleep(startup["periodSeconds"])
        else:
            self.restarts += 1
            raise AssertionError(f"the startup probe of {self.name} failed:\n{self.log}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch("readinessProbe"))
            tasks.create_task(self._watch("livenessProbe"))

    async def _watch(self, kind: str) -> None:
        probe, failed = self.container[kind], 0
        while True:
            failed = 0 if await self._passes(probe) else failed + 1
            over = failed >= probe["failureThreshold"]
            if kind == "readinessProbe" and (over or not failed):
                self.ready = not over
            if kind == "livenessProbe" and over and not self.stopping:
                self.restarts += 1
            await asyncio.sleep(probe["periodSeconds"])

    async def _passes(self, probe: Mapping[str, Any]) -> bool:
        asked = probe["httpGet"]
        head = f"GET {asked['path']} HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\n"
        try:
            async with asyncio.timeout(probe["timeoutSeconds"]):
                port = self.port(asked["port"])
                reader, writer = await asyncio.open_connection(self.address, port)
                try:
                    writer.write(head.encode() + b"User-Agent: kube-probe/1.34\r\n\r\n")
                    status = int((await reader.readline()).split()[1])
                finally:
                    writer.close()
        except (OSError, IndexError, TimeoutError):
            return False
        return 200 <= status < 400

    async def _end_probes(self) -> None:
        if self._probes:
            self._probes.cancel()
            with suppress(asyncio.CancelledError):
                await self._probes

    # -- containers

    def _make_volume(self, volume: Mapping[str, Any]) -> None:
        folder = self.volume(volume["name"])
        group = self._spec["securityContext"]["fsGroup"]
        if "configMap" in volume:
            write_volume(folder, self._files[volume["configMap"]["name"]])
        else:
            assert "emptyDir" in volume, volume
            folder.mkdir(parents=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2777)

    def _id(self, container: Mapping[str, Any]) -> str:
        return f"{self.name}-{container['name']}"

    async def _run(self, container: Mapping[str, Any]) -> asyncio.subprocess.Process:
        bundle = self._folder / container["name"]
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self._config(container)))
        with (self._folder / "log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *("runc", "--root", str(self._folder / "runc"), "run"),
                *("--bundle", str(bundle), self._id(container)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _runc(self, *arguments: str) -> None:
        root = str(self._folder / "runc")
        process = await asyncio.create_subprocess_exec("runc", "--root", root, *arguments)
        assert await process.wait() == 0

    def _config(self, container: Mapping[str, Any]) -> dict[str, Any]:
        """Return the container as the OCI runtime's specification has it."""
        of_pod, own = self._spec["securityContext"], container["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        none: list[str] = []
        kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
        limits = container["resources"]["limits"]
        environment = ENVIRONMENT | SERVICE_LINKS
        environment |= {one["name"]: one["value"] for one in container.get("env", ())}
        return {
            "ociVersion": "1.0.2",
            "hostname": self.name,
            "process": {
                "user": {
                    "uid": of_pod["runAsUser"],
                    "gid": of_pod["runAsGroup"],
                    "additionalGids": [of_pod["fsGroup"]],
                },
                "args": container["command"],
                "env": [f"{name}={value}" for name, value in environment.items()],
                "cwd": "/",
                "capabilities": dict.fromkeys(kinds, none),
                "noNewPrivileges": not own["allowPrivilegeEscalation"],
                "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 16384, "hard": 16384}],
            },
            "root": {"path": str(self._image), "readonly": own["readOnlyRootFilesystem"]},
            "mounts": image_mounts() + [self._mount(one) for one in container["volumeMounts"]],
            "linux": {
                "cgroupsPath": f"{CGROUP}/{self._id(container)}",
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                    {"type": "network", "path": f"/run/netns/{self.name}"},
                ],
                "resources": {
                    "memory": {"limit": int(quantity(limits["memory"]))},
                    "cpu": {"quota": int(quantity(limits["cpu"]) * 100_000), "period": 100_000},
                },
            },
        }

    def _mount(self, mount: Mapping[str, Any]) -> dict[str, Any]:
        volume = next(one for one in self._spec["volumes"] if one["name"] == mount["name"])
        empty = volume.get("emptyDir", {})
        if empty.get("medium") == "Memory":
            options = ["nosuid", "nodev", "mode=1777", f"size={int(quantity(empty['sizeLimit']))}"]
            return {
                "destination": mount["mountPath"],
                "type": "tmpfs",
                "source": "tmpfs",
                "options": options,
            }
        return {
            "destination": mount["mountPath"],
            "type": "bind",
            "source": str(self.volume(mount["name"])),
            "options": ["rbind", "nosuid", "ro" if mount.get("readOnly") else "rw"],
        }
