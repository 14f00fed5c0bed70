"""The shipped configuration of HAProxy in front of Ray's proxies."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from tests.deploy.balancers import haproxy
from tests.ray.cluster import WORKERS_PORT, callers, more, replica_pids, run, until, wait_for


def behind_a_balancer(arguments: Mapping[str, Any], cluster: Any, _: Any) -> dict[str, Any]:
    """Kill an ingress, and then a node with its proxy."""
    run({**arguments, "replicas": 2, "max_replicas_per_node": 1})
    wait_for(2)
    folder = Path(arguments["models"]).parent
    ports = [8000, WORKERS_PORT, WORKERS_PORT]
    found: dict[str, Any] = {}
    with haproxy(ports, folder, retry_500) as balancer:
        address = f"http://127.0.0.1:{balancer.port}"
        with callers(address=address) as found["ingress killed"]:
            more(found["ingress killed"])
            os.kill(replica_pids("Cohort")[-1], signal.SIGKILL)
            more(found["ingress killed"])
            wait_for(2)
            more(found["ingress killed"])
        with callers(address=address) as found["proxy killed"]:
            more(found["proxy killed"])
            node = next(one for one in cluster.worker_nodes)
            cluster.remove_node(node, allow_graceful=False)
            until(lambda: not all(one["Alive"] for one in ray.nodes()))
            more(found["proxy killed"])
            cluster.add_node(num_cpus=3)
            wait_for(2)
            more(found["proxy killed"])
    return found


def retry_500(text: str) -> str:
    """Repeat what Ray's proxy answers if the ingress dies, as docs/operations/ray.md says."""
    return text.replace("response-timeout 503", "response-timeout 500 503")
