"""Kills, an update and load on a cluster, with callers that count what they get."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import ray
from ray import serve
from ray.cluster_utils import Cluster

from cohort.ray_serve.builder import build
from cohort.rpc import inference_pb2 as messages
from tests.waiting import wait_until

CALLERS = 4
ADDRESS = "http://127.0.0.1:8000"
RAW, PICTURE = {"inference-header-content-length": "0"}, bytes(4 * 8 * 8)
IRIS = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}, "outputs": ["label"]}


def failures(arguments: Mapping[str, Any], cluster: Cluster, node: Any) -> dict[str, Any]:
    """Kill a replica, kill a node and add one, and update, with one replica on each node."""
    pinned = {**arguments, "replicas": 2, "max_replicas_per_node": 1}
    run(pinned)
    wait_for(2)
    found: dict[str, Any] = {"answers": answers(), "rpc": rpc_answers()}
    with callers() as found["replica killed"]:
        more(found["replica killed"])
        os.kill(replica_pids("Models")[-1], signal.SIGKILL)
        more(found["replica killed"])
        wait_for(2)
        more(found["replica killed"])
    with callers() as found["node killed and added"]:
        more(found["node killed and added"])
        cluster.remove_node(node, allow_graceful=False)
        until(lambda: not all(one["Alive"] for one in ray.nodes()))
        more(found["node killed and added"])
        cluster.add_node(num_cpus=3)
        wait_for(2)
        more(found["node killed and added"])
    with callers() as found["rolling update"]:
        more(found["rolling update"])
        run({**pinned, "settings": {**arguments["settings"], "max_body_mb": 32}})
        wait_for(2)
        more(found["rolling update"])
    return found


def scaling(arguments: Mapping[str, Any], *unused: object) -> dict[str, Any]:
    """Load one replica until there are four, and then not until there is one."""
    run({**arguments, "max_replicas": 4, "queue_ms": 5, "downscale_delay_s": 4})
    until(lambda: running("Models") == 1)
    counts = [1]
    with callers(count=1) as light:
        with callers(heavy, count=16) as heavier:
            until(lambda: running("Models") == 4)
            counts.append(4)
        until(lambda: running("Models") == 1)
        counts.append(1)
    return {"replicas": counts, "scaled, light": light, "scaled, heavy": heavier}


def models_in_places(arguments: Mapping[str, Any], *unused: object) -> dict[str, Any]:
    """One model at a time in a replica, and another model in separate replicas."""
    run({**arguments, "models_per_replica": 1, "dedicated": {"digits": {"replicas": 1}}})
    until(lambda: running("Model-digits") == 1)
    got: Counter[str] = Counter()
    with httpx.Client(base_url=ADDRESS, timeout=60) as client:
        for _ in range(5):
            got[predict(client)] += 1
            got[heavy(client)] += 1
            got[digits(client)] += 1
    return {"models in places": got}


def run(arguments: Mapping[str, Any]) -> None:
    serve.run(build(dict(arguments)), name="cohort", route_prefix="/")


def running(deployment: str) -> int:
    found = serve.status().applications["cohort"].deployments[deployment]
    return int(found.replica_states.get("RUNNING", 0))


def wait_for(replicas: int) -> None:
    until(lambda: running("Models") == replicas == running("Cohort"))


def until(holds: Callable[[], bool]) -> None:
    wait_until(holds, seconds=240)


def more(got: Counter[str]) -> None:
    """Wait for further answers."""
    wanted = got.total() + 200
    until(lambda: got.total() >= wanted)


def replica_pids(deployment: str) -> list[int]:
    """The processes of a deployment's replicas in this namespace."""
    title = f"ray::ServeReplica:cohort:{deployment}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            same = path.parent.joinpath("ns/net").readlink() == Path("/proc/self/ns/net").readlink()
            if same and path.read_bytes().startswith(title):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(found)


def predict(client: httpx.Client) -> str:
    answer = client.post("/models/iris/predict", json=IRIS)
    right = answer.status_code == 200 and answer.json()["outputs"] == {"label": [0]}
    return "right" if right else f"{answer.status_code} {answer.text[:200]}"


def heavy(client: httpx.Client) -> str:
    answer = client.post("/models/slow/predict", json={"input": [[1, 2, 3, 4]]})
    right = answer.status_code == 200 and answer.json()["prediction"] == [[1, 2, 3, 4]]
    return "right" if right else f"{answer.status_code} {answer.text[:200]}"


def digits(client: httpx.Client) -> str:
    answer = client.post("/v2/models/digits/infer", content=PICTURE, headers=RAW)
    return "right" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"


@contextmanager
def callers(
    ask: Callable[[httpx.Client], str] = predict, count: int = CALLERS
) -> Iterator[Counter[str]]:
    """Callers that send one request after the other until the block ends, without retries."""
    got: Counter[str] = Counter()
    over = threading.Event()

    def call() -> None:
        with httpx.Client(base_url=ADDRESS, timeout=60) as client:
            while not over.is_set():
                try:
                    got[ask(client)] += 1
                except httpx.HTTPError as error:
                    got[repr(error)] += 1

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield got
    finally:
        over.set()
        for thread in threads:
            thread.join()


def answers() -> list[Any]:
    """Status, code of the error, and media type of a request of every kind."""
    found = []
    with httpx.Client(base_url=ADDRESS, timeout=60) as client:
        for method, path, body in (
            ("GET", "/health/ready", None),
            ("POST", "/predict", {"model": "iris", **IRIS}),
            ("POST", "/v1/models/iris:predict", {"instances": IRIS["inputs"]["features"]}),  # type: ignore[index]
            ("GET", "/v2/models/iris/ready", None),
            ("POST", "/models/irs/predict", IRIS),
            ("POST", "/models/iris/predict", {"inputs": {"features": [[1]]}}),
            ("GET", "/nothing", None),
            ("PUT", "/predict", None),
        ):
            answer = client.request(method, path, json=body)
            json_body = answer.content and answer.headers["content-type"] == "application/json"
            code = answer.json().get("code") if json_body else None
            found.append([method, path, answer.status_code, code])
    return found


def rpc_answers() -> list[Any]:
    """The label of an answer, and the status of a wrong call."""
    found: list[Any] = []
    with grpc.insecure_channel("127.0.0.1:9000") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        for model in ("iris", "irs"):
            request = messages.ModelInferRequest(model_name=model)
            given = request.inputs.add(name="features", datatype="FP32", shape=[1, 4])
            given.contents.fp32_contents.extend([5.1, 3.5, 1.4, 0.2])
            request.outputs.add(name="label")
            try:
                answer = call(request, metadata=(("application", "cohort"),))
                found.append([one.name for one in answer.outputs])
            except grpc.RpcError as error:
                found.append([error.code().name, error.details()])
    return found
