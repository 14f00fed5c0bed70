"""Replicas on two nodes share decisions about rollouts, and the work of `cohort score`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve

from tests.ray.cluster import ADDRESS, until
from tests.ray.streams import run_shown

ROLLOUT = "digits: {variants: {stable: {version: 1, weight: 90}, canary: {version: 2, weight: 10}}}"
TOKEN = {"authorization": "Bearer secret"}
ROWS = 3000


def rollouts(arguments: Mapping[str, Any], *unused: object) -> dict[str, Any]:
    """Roll a variant back by one replica, and start all again."""
    file = Path(arguments["models"]).parent / "rollouts.yaml"
    file.write_text(ROLLOUT + "\n")
    kept = {**arguments["settings"], "rollouts": str(file), "admin_token": "secret"}
    changed = {**arguments, "settings": kept}
    run_shown(changed)
    with httpx.Client(base_url=ADDRESS, timeout=60) as client:
        until(lambda: weights(client) == [10, 10])
        before = weights(client)
        rolled = client.post("/admin/rollouts/digits/rollback/canary", headers=TOKEN)
        until(lambda: weights(client) == [0, 0])
        everywhere = weights(client)
        serve.delete("cohort")
        run_shown(changed)
        again = weights(client)
        serve.delete("cohort")
    return {"rollback": [rolled.status_code, before, everywhere, again]}


def weights(client: httpx.Client) -> list[int]:
    """The share of the canary, in percent, in each of two replicas."""
    found: dict[str, int] = {}

    def asked() -> bool:
        answer = client.get("/models/digits")
        variants = answer.json()["rollout"]["variants"]
        share = next(one["share"] for one in variants if one["name"] == "canary")
        found[answer.headers["x-pid"]] = round(100 * share)
        return len(found) == 2

    until(asked)
    return sorted(found.values())


def scored(arguments: Mapping[str, Any], *unused: object) -> dict[str, Any]:
    """Score a file on the cluster, and the same in one process."""
    folder = Path(arguments["models"]).parent
    names = "sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)"
    lines = [f"{at},5.1,3.5,1.4,{at % 3}" for at in range(ROWS)]
    lines[7] = "7,5.1,3.5,wide,1"
    (folder / "rows.csv").write_text("\n".join([f"id,{names}", *lines]) + "\n")
    codes = []
    for out, more in ("here.csv", []), ("cluster.csv", ["--ray"]):
        command = [sys.executable, "-m", "cohort", "score", str(folder / "rows.csv")]
        command += ["--model", "iris", "--models", arguments["models"], "--outputs", "label"]
        address = ray.get_runtime_context().gcs_address
        environment = {**os.environ, "RAY_ADDRESS": address, "COHORT_CACHE": str(folder / "cache")}
        command += ["--out", str(folder / out), *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        sys.stderr.write(done.stderr)
        codes.append(done.returncode)
    here, cluster = ((folder / out).read_text() for out in ("here.csv", "cluster.csv"))
    return {"scored": [*codes, here == cluster, len(here.splitlines()) - 1]}
