"""Two Ray nodes in a network namespace, and a day of them.

`python -m tests.ray.day FOLDER` lives through it, and prints the answers that callers got in
each part, as a JSON object. It must run in a namespace that has only `lo`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions, ProxyLocation, gRPCOptions

from tests.ray.cluster import failures, models_in_places, scaling
from tests.ray.shared import rollouts, scored
from tests.ray.streams import streams

PARTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "streams": streams,
    "rollouts": rollouts,
    "failures": failures,
    "scaling": scaling,
    "models": models_in_places,
    "scored": scored,
}


def main(folder: Path, parts: Sequence[str]) -> None:
    """Live through the day, or the named parts of it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
    node = cluster.add_node(num_cpus=3)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    serve.start(
        proxy_location=ProxyLocation.HeadOnly,
        http_options=HTTPOptions(host="127.0.0.1", port=8000),
        grpc_options=gRPCOptions(
            port=9000, grpc_servicer_functions=["cohort.ray_serve:add_inference_service"]
        ),
    )
    kept = {"state": str(folder.parent / "state"), "cache": str(folder.parent / "cache")}
    arguments: dict[str, Any] = {"models": str(folder), "settings": kept}
    found: dict[str, Any] = {}
    for part in parts or PARTS:
        found |= PARTS[part](arguments, cluster, node)
        sys.stderr.write(f"{found}\n")
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the namespace's processes end with their raylets


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
