"""Measure a light caller of a tiny model next to callers who send large bodies.

    python -m benchmarks.large_neighbours [--seconds 5] [--rounds 3] [--kinds "predict 1,V2 10"]

Requests for the tiny model arrive 200 times a second whether or not earlier ones are answered, and
count from when they were due. During that, two callers send one large body after the other to a
model that answers one number. A kind is a form and the body's size in MB. Each round measures all
kinds in turn, "nothing" too: what the machine itself does. The median of the rounds is shown, and
for the p99 the range. CPU is the server's, user and system, less what it takes in rounds of
nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import numpy as np
from onnx import ModelProto, TensorProto, helper
from rich.console import Console
from rich.table import Table

from benchmarks.usage import TICK
from cohort.rpc import inference_pb2 as schema
from tests import onnx_models
from tests.e2e.processes import cohort, free_port

RATE = 200
CALLERS = 2
NOTHING = "nothing"

SENDING = """
import http.client, json, os, sys, time
port, path, file, headers = sys.argv[1:]
os.nice(5)
headers, body = json.loads(headers), open(file, "rb").read()
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=600)
while True:
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    text = response.read()
    if response.status == 503:
        time.sleep(0.05)
        continue
    if response.status != 200:
        sys.exit(text[:300].decode(errors="replace"))
    print(len(body), flush=True)
"""

CALLING = """
import os, sys, time
import grpc
target, file = sys.argv[1:]
os.nice(5)
body = open(file, "rb").read()
options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
channel = grpc.insecure_channel(target, options)
call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
while True:
    try:
        call(body)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        time.sleep(0.05)
        continue
    print(len(body), flush=True)
"""


@dataclass(frozen=True)
class Large:
    """The request of a large caller; a path of "" is gRPC."""

    path: str
    body: bytes
    headers: Mapping[str, str]


JSON = {"content-type": "application/json"}


def predict(values: np.ndarray) -> Large:
    """Return the tutorials' form."""
    return Large("/models/large/predict", b'{"input":[[%b]]}' % _digits(values), JSON)


def v2(values: np.ndarray) -> Large:
    """Return a V2 tensor as JSON."""
    about = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,%d],"data":[%b]}]}'
    return Large("/v2/models/large/infer", about % (values.size, _digits(values)), JSON)


def v2_binary(values: np.ndarray) -> Large:
    """Return a V2 tensor as bytes behind JSON."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [1, values.size],
                    "parameters": {"binary_data_size": values.nbytes},
                }
            ]
        }
    ).encode()
    return Large(
        "/v2/models/large/infer",
        head + values.tobytes(),
        {"inference-header-content-length": str(len(head))},
    )


def npy(values: np.ndarray) -> Large:
    """Return a .npy file."""
    with tempfile.TemporaryFile() as file:
        np.save(file, values.reshape(1, -1))
        file.seek(0)
        body = file.read()
    return Large("/models/large/predict", body, {"content-type": "application/x-npy"})


def rpc(values: np.ndarray) -> Large:
    """Return a gRPC message with raw contents."""
    request = schema.ModelInferRequest(model_name="large")
    request.inputs.add(name="x", datatype="FP32", shape=[1, values.size])
    request.raw_input_contents.append(values.tobytes())
    return Large("", request.SerializeToString(), {})


def _digits(values: np.ndarray) -> bytes:
    return ",".join(map("%.8f".__mod__, values.tolist())).encode()


FORMS: dict[str, tuple[Callable[[np.ndarray], Large], int]] = {
    "predict": (predict, 11),
    "V2": (v2, 11),
    "binary": (v2_binary, 4),
    "npy": (npy, 4),
    "gRPC": (rpc, 4),
}
"""Each with about how many bytes a number takes."""

KINDS = ("predict 1", "V2 1", "predict 10", "V2 10", "predict 52", "V2 52")
BINARY_KINDS = ("binary 20", "npy 20", "gRPC 20")


@dataclass(frozen=True)
class Round:
    """The results of one kind in one round: seconds, MB/s, and the server's CPU seconds/s."""

    p50: float
    p99: float
    worst: float
    megabytes: float
    cpu: float


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join((*KINDS, *BINARY_KINDS)))
    parser.add_argument("--niceness", type=int, default=0, help="the server's; below 0 as root")
    chosen = parser.parse_args()
    kinds = [NOTHING, *chosen.kinds.split(",")]
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        onnx_models.save(onnx_models.mlp(), folder / "models/fast/1/model.onnx")
        onnx_models.save(_mean(), folder / "models/large/1/model.onnx")
        body = json.dumps({"inputs": {"x": [[0.0] * 4]}}).encode()
        light = folder / "light.http"
        light.write_bytes(
            b"POST /models/fast/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        rpc_port = free_port()
        bodies = {kind: _body(kind) for kind in kinds[1:]}
        with cohort(
            folder / "models",
            folder,
            grpc_port=rpc_port,
            max_body_mb=64,
            under=("nice", "-n", str(chosen.niceness)),
        ) as server:
            port = server.url.rpartition(":")[2]
            for _ in range(chosen.rounds):
                for kind in kinds:
                    rounds[kind].append(
                        _round(
                            server.process.pid,
                            port,
                            rpc_port,
                            light,
                            bodies.get(kind),
                            folder,
                            chosen.seconds,
                        )
                    )
    _print(rounds)


def _body(kind: str) -> Large:
    form, _, size = kind.partition(" ")
    make, width = FORMS[form]
    count = int(float(size) * 1e6) // width
    return make(np.random.default_rng(0).random(count, np.float32))


def _round(
    pid: int,
    port: str,
    rpc_port: int,
    light: Path,
    large: Large | None,
    folder: Path,
    seconds: float,
) -> Round:
    with ExitStack() as stack:
        senders = []
        if large is not None:
            file = folder / "large.body"
            file.write_bytes(large.body)
            program = [sys.executable, "-c"]
            if large.path:
                program += [SENDING, port, large.path, str(file), json.dumps(dict(large.headers))]
            else:
                program += [CALLING, f"127.0.0.1:{rpc_port}", str(file)]
            for number in range(CALLERS):
                log = stack.enter_context((folder / f"sent-{number}").open("w+"))
                process = subprocess.Popen(program, stdout=log)
                stack.callback(process.wait)
                stack.callback(process.kill)
                senders.append((process, Path(log.name)))
            until = monotonic() + 60
            while not all(path.stat().st_size for _, path in senders):
                if any(process.poll() is not None for process, _ in senders) or monotonic() > until:
                    raise RuntimeError("a large request failed")
                sleep(0.01)
        before, began, sent = _cpu(pid), monotonic(), _sent(senders)
        command = [sys.executable, "-m", "benchmarks.openloop", port, str(light), str(RATE)]
        done = subprocess.run(
            [*command, str(seconds), "32"], check=True, capture_output=True, text=True
        )
        took = monotonic() - began
        heard = json.loads(done.stdout)
        if heard["failures"]:
            raise RuntimeError(f"{heard['failures']} light requests failed")
        return Round(
            heard["p50"],
            heard["p99"],
            heard["worst"],
            (_sent(senders) - sent) / 1e6 / took,
            (_cpu(pid) - before) / took,
        )


def _sent(senders: list[tuple[subprocess.Popen[bytes], Path]]) -> int:
    return sum(sum(map(int, path.read_text().split())) for _, path in senders)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) * TICK


def _mean() -> ModelProto:
    """Return the mean of each row of any width."""
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=1)
    graph = helper.make_graph(
        [node],
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _print(rounds: Mapping[str, list[Round]]) -> None:
    table = Table("beside", "p50 ms", "p99 ms", "range", "worst ms", "MB/s", "CPU ms/MB")
    idle = statistics.median(one.cpu for one in rounds[NOTHING])
    for kind, several in rounds.items():
        p99 = sorted(one.p99 * 1e3 for one in several)
        rate = statistics.median(one.megabytes for one in several)
        cpu = statistics.median(one.cpu for one in several) - idle
        table.add_row(
            kind,
            f"{statistics.median(one.p50 for one in several) * 1e3:.2f}",
            f"{statistics.median(p99):.2f}",
            f"{p99[0]:.1f}-{p99[-1]:.1f}",
            f"{statistics.median(one.worst for one in several) * 1e3:.1f}",
            f"{rate:.0f}",
            f"{cpu * 1e3 / rate:.1f}" if rate else "",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
