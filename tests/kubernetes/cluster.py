"""Pods on nodes, in place of a control plane: endpoints, scaling, updates, a lost node."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.kubernetes.pod import CGROUP, Pod
from tests.kubernetes.rendered import Objects

PROPAGATION = 1.0
"""Seconds from a change of a pod's readiness until it reaches all nodes and gateways."""

NODE_GRACE = 40.0
"""Seconds without a kubelet after which the control plane takes a node's pods out."""

UNSHARE = "run this by `make kubernetes`, in namespaces of its own"

BRIDGE, NETWORK = "cluster0", "10.244.0"


def ip(*arguments: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *arguments], check=True)


class Cluster:
    """The pods of a Deployment, each on a separate node.

    pods: All pods that have not ended, by name.
    statuses: The exit statuses of the servers that were deleted.
    """

    def __init__(self, objects: Objects, folder: Path, image: Path) -> None:
        self._deployment: Mapping[str, Any] = objects["Deployment", "cohort"]["spec"]
        self._files = {
            name: one["data"] for (kind, name), one in objects.items() if kind == "ConfigMap"
        }
        self._folder, self._image = folder, image
        self._numbers = itertools.count(10)
        self._links: list[str] = []
        self._lost_at: dict[str, float] = {}
        self._history: deque[tuple[float, list[Pod]]] = deque([(0.0, [])])
        self._random = Random(43)
        self._ending: set[asyncio.Task[None]] = set()
        self.pods: dict[str, Pod] = {}
        self.statuses: list[int] = []

    # -- what a node or a gateway knows

    def endpoints(self) -> list[Pod]:
        """Return the pods that get new connections, as nodes know them now."""
        now = time.monotonic()
        while len(self._history) > 1 and self._history[1][0] <= now - PROPAGATION:
            self._history.popleft()
        return self._history[0][1]

    def choose(self) -> Pod:
        """Return the pod of a new connection to the Service; kube-proxy chooses at random."""
        return self._random.choice(self.endpoints())

    async def follow(self) -> None:
        """Note changes of the pods' readiness, without end."""
        while True:
            now = time.monotonic()
            able = [
                pod
                for name, pod in self.pods.items()
                if pod.ready
                and not pod.stopping
                and now < self._lost_at.get(name, now) + NODE_GRACE
            ]
            if able != self._history[-1][1]:
                self._history.append((now, able))
            await asyncio.sleep(0.05)

    # -- what a controller does

    async def scale(self, replicas: int) -> None:
        """Start pods until there are that many, and wait until all are available."""
        missing = replicas - len(self._current())
        await asyncio.gather(*(self._start() for _ in range(missing)))

    async def update(self) -> None:
        """Replace all pods by the Deployment's strategy."""
        strategy = self._deployment["strategy"]["rollingUpdate"]
        assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
        for pod in self._current():
            await self._start()
            self._end(pod)
        await asyncio.gather(*self._ending)

    async def lose(self, pod: Pod) -> None:
        """Lose a pod's node: the network drops all that is sent to it, without an error."""
        ip("link", "set", f"v{pod.name}", "down")
        self._lost_at[pod.name] = time.monotonic()
        await pod.kill()

    async def replace_lost(self) -> None:
        """Wait until the control plane gives a lost node up, and start as many pods elsewhere."""
        while any(pod.name in self._lost_at for pod in self.endpoints()):
            await asyncio.sleep(0.2)
        for name in self._lost_at:
            del self.pods[name]
        await asyncio.gather(*(self._start() for _ in self._lost_at))

    async def close(self) -> None:
        """End all pods at once."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*(pod.kill() for pod in self.pods.values()))
        for name in self._links:  # the kernel would take its time to delete them
            ip("link", "delete", name)

    def _current(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if not pod.stopping]

    async def _start(self) -> None:
        """Start a pod, and wait until it is available: ready for `minReadySeconds`."""
        number = next(self._numbers)
        name = f"cohort-{number}"
        ip("netns", "add", name)
        ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", f"v{name}", "master", BRIDGE, "up")
        self._links.append(f"v{name}")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        spec = self._deployment["template"]["spec"]
        pod = Pod(
            name,
            f"{NETWORK}.{number}",
            spec,
            self._files,
            folder=self._folder,
            image=self._image,
        )
        self.pods[name] = pod
        await pod.start()
        await pod.wait_ready()
        await asyncio.sleep(self._deployment["minReadySeconds"])
        assert pod.ready, pod.log

    def _end(self, pod: Pod) -> None:
        async def end() -> None:
            self.statuses.append(await pod.stop())
            del self.pods[pod.name]

        self._ending.add(asyncio.create_task(end()))


@asynccontextmanager
async def cluster(objects: Objects, folder: Path, image: Path) -> AsyncIterator[Cluster]:
    """A cluster without pods, in the network namespace of this process."""
    devices = Path("/proc/net/dev").read_text().splitlines()[2:]
    assert [one.split(":")[0].strip() for one in devices] == ["lo"], UNSHARE
    Path("/run/netns").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "cohort", "/run/netns"], check=True)
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")
    made = Cluster(objects, folder, image)
    following = asyncio.create_task(made.follow())
    try:
        yield made
    finally:
        following.cancel()
        await made.close()
        ip("link", "delete", BRIDGE)
        ip("-all", "netns", "delete")
        subprocess.run(["umount", "/run/netns"], check=True)
        groups = Path("/sys/fs/cgroup")  # versions 1 and 2
        for left in [*groups.glob(f"*{CGROUP}"), *groups.glob(CGROUP[1:])]:
            left.rmdir()
