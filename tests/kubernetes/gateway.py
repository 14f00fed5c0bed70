"""HAProxy as a gateway, with the timeouts and retries of the rendered HTTPRoute."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.deploy.balancers import program
from tests.e2e.processes import end
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pod import Pod
from tests.kubernetes.rendered import Object

SLOTS, PORT = 12, 8080

CONFIG = """
global
    tune.bufsize 262144
    stats socket {socket} level admin
defaults
    mode http
    timeout connect 1s
    timeout client 65s
    timeout server {seconds}
    retries {attempts}
    option redispatch 1
    balance roundrobin
frontend http
    bind 127.0.0.1:{port}
    default_backend predictions
backend predictions
    option http-buffer-request
    retry-on conn-failure empty-response response-timeout {codes}
    server-template pod 1-{slots} 127.0.0.1:8000 disabled
"""


class Gateway:
    """A gateway that sends requests to ready pods. `port` is on the loopback address."""

    def __init__(self, cluster: Cluster, socket: Path) -> None:
        self.port = PORT
        self._cluster, self._socket = cluster, socket
        self._slots: list[Pod | None] = [None] * SLOTS

    @property
    def pods(self) -> int:
        """Number of pods that get requests."""
        return sum(pod is not None for pod in self._slots)

    async def follow(self) -> None:
        """Pass on changes of the endpoints, without end."""
        while True:
            known = self._cluster.endpoints()
            for slot, pod in enumerate(self._slots):
                if pod is not None and pod not in known:
                    await self._tell(f"set server predictions/pod{slot + 1} state maint")
                    self._slots[slot] = None
            for pod in known:
                if pod not in self._slots:
                    slot = self._slots.index(None)
                    name = f"predictions/pod{slot + 1}"
                    await self._tell(f"set server {name} addr {pod.address} port {pod.port()}")
                    await self._tell(f"set server {name} state ready")
                    self._slots[slot] = pod
            await asyncio.sleep(0.05)

    async def _tell(self, command: str) -> None:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        writer.write(f"{command}\n".encode())
        await reader.read()
        writer.close()


@asynccontextmanager
async def gateway(cluster: Cluster, route: Object, folder: Path) -> AsyncIterator[Gateway]:
    """Start the gateway with the timeouts and the retries of the route for predictions."""
    rule = next(one for one in route["spec"]["rules"] if one["name"] == "predictions")
    socket, file = folder / "haproxy.sock", folder / "haproxy.cfg"
    file.write_text(
        CONFIG.format(
            socket=socket,
            seconds=rule["timeouts"]["backendRequest"],
            attempts=rule["retry"]["attempts"],
            codes=" ".join(map(str, rule["retry"]["codes"])),
            port=PORT,
            slots=SLOTS,
        )
    )
    with (folder / "haproxy.log").open("wb") as log:
        command = [program("haproxy"), "-db", "-f", str(file)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not socket.exists():
            assert process.poll() is None
            await asyncio.sleep(0.05)
        made = Gateway(cluster, socket)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(made.follow())
            try:
                yield made
            finally:
                following.cancel()
    finally:
        end(process)
