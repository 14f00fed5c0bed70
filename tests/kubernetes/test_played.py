"""The rendered pods, run by their manifest on nodes under load: no request is lost."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.kubernetes.callers import Heard, calling, calling_over_grpc
from tests.kubernetes.cluster import Cluster, cluster
from tests.kubernetes.gateway import gateway
from tests.kubernetes.image import write_image
from tests.kubernetes.pod import Pod, quantity, write_volume
from tests.kubernetes.rendered import everything, overlay, with_tools
from tests.kubernetes.service import service
from tests.waiting import until

pytestmark = [everything, with_tools]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the image."""
    return write_image(tmp_path_factory.mktemp("image") / "root")


@pytest_asyncio.fixture
async def nodes(image: Path, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster without pods, with the objects of the overlay `monitoring`."""
    async with cluster(overlay("monitoring"), tmp_path, image) as made:
        yield made


def where(of: Cluster) -> tuple[str, int]:
    """Return where a new connection to the Service leads."""
    pod = of.choose()
    return pod.address, pod.port()


def started(of: Cluster) -> Pod:
    """Return the only pod."""
    (pod,) = of.pods.values()
    return pod


def say(heard: Heard) -> None:
    """Print the figures, for `make kubernetes ARGS=-s`."""
    sys.stdout.write(f"lost {heard.lost.total()} of {heard.right.total()}\n")


def server_of(pod: Pod) -> Path:
    """Return the folder of /proc of the process that serves in a pod."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            cgroups = (process / "cgroup").read_text()
        except OSError:
            continue
        if f"{pod.name}-cohort" in cgroups:
            return process
    raise AssertionError(pod.log)


async def test_a_container_has_what_its_manifest_asks_for(nodes: Cluster) -> None:
    """User, no capabilities, no new privileges, a read-only root, and limits that Cohort reads."""
    await nodes.scale(1)
    pod = started(nodes)
    process = server_of(pod)
    status = dict(re.findall(r"^(\w+):\t(.*)$", (process / "status").read_text(), re.MULTILINE))
    assert status["Uid"].split() == ["10001"] * 4
    assert status["CapEff"] == status["CapBnd"] == "0" * 16
    assert status["NoNewPrivs"] == "1"
    root = next(
        line.split() for line in (process / "mounts").read_text().splitlines() if " / " in line
    )
    assert "ro" in root[3].split(",")
    async with httpx.AsyncClient(base_url=f"http://{pod.address}:{pod.port()}") as client:
        metrics = (await client.get("/metrics")).text
    limits = pod.container["resources"]["limits"]
    values = dict(
        re.findall(r"^(process_cpu_cores|memory_budget_bytes) (\S+)$", metrics, re.MULTILINE)
    )
    assert float(values["process_cpu_cores"]) == quantity(limits["cpu"])
    budget = (quantity(limits["memory"]) - 150 * 2**20) / 4  # docs/operations/limits.md
    assert abs(float(values["memory_budget_bytes"]) - budget) < 2**20
    assert '"warning"' not in pod.log  # such as of service links


async def test_a_swapped_config_map_changes_the_split_without_a_gap(nodes: Cluster) -> None:
    """kubelet swaps `..data`: the server follows, and no request fails."""
    await nodes.scale(1)
    pod = started(nodes)
    async with calling(lambda: where(nodes), "service") as heard:
        rollouts = (
            "digits: {variants: {new: {version: 2, weight: 1}, old: {version: 1, weight: 0}}}\n"
        )
        async with httpx.AsyncClient(base_url=f"http://{pod.address}:{pod.port()}") as client:

            async def followed(text: str) -> bool:
                return text in (await client.get("/metrics")).text

            assert not await followed("rollout_weight{")
            for weight in (1, 3):
                write_volume(
                    pod.volume("config"),
                    {"rollouts.yaml": rollouts.replace("weight: 1", f"weight: {weight}")},
                )
                wanted = f'variant="new",version="2"}} {weight}.0'
                await until(partial(followed, wanted))
    assert not heard.lost
    assert sum(heard.right.values()) > 50


async def test_scaling_and_updating_lose_nothing(nodes: Cluster) -> None:
    """Scale from one to three and replace all, by callers of the Service who never ask twice."""
    await nodes.scale(1)
    await until(lambda: bool(nodes.endpoints()))
    async with (
        service(nodes, "grpc") as address,
        calling_over_grpc(address) as heard_over_grpc,
        calling(lambda: where(nodes), "service") as heard,
    ):
        await nodes.scale(3)
        await until(lambda: len(nodes.endpoints()) == 3)
        await nodes.update()
    say(heard)
    say(heard_over_grpc)
    assert not heard.lost
    assert not heard_over_grpc.lost
    assert heard_over_grpc.right.total() > 100
    assert nodes.statuses == [0] * 3
    assert all(count > 50 for count in heard.right.values())
    assert len(heard.by) == 6  # each pod has served
    assert not any(pod.restarts for pod in nodes.pods.values())


async def test_a_lost_node_loses_nothing_behind_the_gateway(nodes: Cluster, tmp_path: Path) -> None:
    """A gateway with the retries of the HTTPRoute hides a node whose network is gone."""
    await nodes.scale(3)
    route = overlay("monitoring")["HTTPRoute", "cohort"]
    async with gateway(nodes, route, tmp_path) as balancer:
        await until(lambda: balancer.pods == 3)
        async with calling(lambda: ("127.0.0.1", balancer.port), "gateway") as heard:
            await until(lambda: sum(heard.right.values()) > 200)
            await nodes.lose(next(iter(nodes.pods.values())))
            await nodes.replace_lost()
            await nodes.update()
    say(heard)
    assert not heard.lost
    assert all(count > 100 for count in heard.right.values())
