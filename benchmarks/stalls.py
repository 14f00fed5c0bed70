"""Measure the waits of others while a large body is read: nothing long runs on the event loop.

    python -m benchmarks.stalls [--megabytes 60] [--kinds "float rows,one string"]

One body of a kind after the other is sent to a separate server. Another process sends to
/health/live on a new connection every few milliseconds. The longest wait counts, on a busy machine
that of the best round; "nothing" is the machine itself. Design: under 100 ms whatever the body.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

from rich.console import Console
from rich.table import Table

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort

ASKING = """
import http.client, sys, time
while True:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    connection.request("GET", "/health/live", headers={"connection": "close"})
    connection.getresponse().read()
    connection.close()
    print(began, time.monotonic(), flush=True)
    time.sleep(0.005)
"""

Body = Callable[[int], bytes]


def rows(unit: bytes, last: bytes = b"") -> Body:
    """Return a list of `unit` over and over, in the tutorials' form; and at the end `last`."""
    return lambda size: (
        b'{"input": [' + unit * (size // len(unit)) + (last or unit.rstrip(b",")) + b"]}"
    )


def columns(unit: bytes) -> Body:
    """Return the same among V1's instances."""
    return lambda size: b'{"instances": [' + unit * (size // len(unit)) + unit.rstrip(b",") + b"]}"


def tensor(datatype: str, unit: bytes) -> Body:
    """Return the same in a V2 tensor."""

    def body(size: int) -> bytes:
        count = size // len(unit) + 1
        about = json.dumps({"name": "x", "datatype": datatype, "shape": [count]}).encode()
        data = unit * (count - 1) + unit.rstrip(b",")
        return b'{"inputs": [' + about[:-1] + b', "data": [' + data + b"]}]}"

    return body


FLOATS = b"[0.12345678,1.5,2.25,3.125],"
NUMBERS, TEXTS = "fp32", "bytes"
PREDICT, V1, V2 = "/models/{}/predict", "/v1/models/{}:predict", "/v2/models/{}/infer"

KINDS: dict[str, tuple[str, str, Body]] = {
    "float rows": (PREDICT, NUMBERS, rows(FLOATS)),
    "digits": (PREDICT, NUMBERS, rows(b"1,")),
    "wide rows": (PREDICT, NUMBERS, rows(b"[" + b"0.12345678," * 9999 + b"1.5],")),
    "lists in lists": (PREDICT, NUMBERS, rows(b"[[[[1]]]],")),
    "empty lists": (PREDICT, NUMBERS, rows(b"[],")),
    "wrong at the end": (PREDICT, NUMBERS, rows(FLOATS, b'[1,2,3,"4"]')),
    "uneven at the end": (PREDICT, NUMBERS, rows(FLOATS, b"[1,2,3]")),
    "no JSON at the end": (PREDICT, NUMBERS, rows(FLOATS, b"[1,2,3,]")),
    "booleans": (PREDICT, NUMBERS, rows(b"true,")),
    "objects": (PREDICT, NUMBERS, rows(b"{},")),
    "short strings": (PREDICT, TEXTS, rows(b'"abcdefghi",')),
    "long strings": (PREDICT, TEXTS, rows(b'"%b",' % (b"a" * 300))),
    "one string": (PREDICT, TEXTS, lambda size: b'{"input": ["' + b"a" * size + b'"]}'),
    "escapes": (PREDICT, TEXTS, lambda size: b'{"input": ["' + b"\\u4e2d" * (size // 6) + b'"]}'),
    "an id": (PREDICT, NUMBERS, lambda size: b'{"input": [1], "id": "' + b"a" * size + b'"}'),
    "keys": (
        PREDICT,
        NUMBERS,
        lambda size: (
            b'{"input": [1], "parameters": {'
            + b",".join(b'"k%d":1' % number for number in range(size // 12))
            + b"}}"
        ),
    ),
    "outputs": (
        PREDICT,
        NUMBERS,
        lambda size: b'{"input": [1], "outputs": [' + b'"y",' * (size // 4) + b'"y"]}',
    ),
    "V1 rows": (V1, NUMBERS, columns(FLOATS)),
    "V1 rows by name": (V1, NUMBERS, columns(b'{"x": 0.12345678},')),
    "V1 base64": (V1, TEXTS, columns(b'{"b64": "%b"},' % (b"YWJj" * 100))),
    "V2 floats": (V2, NUMBERS, tensor("FP32", b"0.12345678,")),
    "V2 digits": (V2, NUMBERS, tensor("FP32", b"1,")),
    "V2 strings": (V2, TEXTS, tensor("BYTES", b'"%b",' % (b"a" * 300))),
}


def main() -> None:
    """Send the bodies and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    table = Table("body", "answer", "took s", "longest wait ms")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, datatype in ((NUMBERS, "FP32"), (TEXTS, "BYTES")):
            model = onnx_models.identity(datatype, ["N"])
            onnx_models.save(model, folder / "models" / name / "1" / "model.onnx")
        with cohort(folder / "models", folder) as server:
            table.add_row("nothing", "", "2.0", f"{min(waits(server, idle, chosen.rounds))[0]:.0f}")
            for kind in chosen.kinds.split(","):
                path, model_name, body = KINDS[kind]
                content = body(chosen.megabytes << 20)
                statuses: list[int] = []

                def send() -> None:
                    statuses.append(post(server, path.format(model_name), content))  # noqa: B023

                wait, took = min(waits(server, send, chosen.rounds))
                table.add_row(kind, str(statuses[-1]), f"{took:.1f}", f"{wait:.0f}")
    Console().print(table)


def idle() -> None:
    """Send nothing."""
    sleep(2)


def waits(server: Cohort, attack: Callable[[], None], rounds: int) -> Iterator[tuple[float, float]]:
    """For each round, the longest wait in milliseconds and the seconds that the attack took."""
    port = server.url.rpartition(":")[2]
    for _ in range(rounds):
        asked: list[tuple[float, float]] = []
        program = [sys.executable, "-c", ASKING, port]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            output = process.stdout
            assert output is not None

            def read() -> None:
                for line in output:  # noqa: B023
                    if line.endswith("\n"):  # the last one may be cut short
                        began, _, ended = line.partition(" ")
                        asked.append((float(began), float(ended)))  # noqa: B023

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            while len(asked) < 20:
                sleep(0.01)
            began = monotonic()
            attack()
            ended = monotonic()
            while asked[-1][0] < ended:
                sleep(0.01)
            process.kill()
            reader.join()
        worst = max(b - a for a, b in asked if b > began and a < ended)
        yield worst * 1000, ended - began


def post(server: Cohort, path: str, content: bytes) -> int:
    """Send a body, read the response, and give its status."""
    connection = http.client.HTTPConnection(server.url.rpartition("/")[2], timeout=600)
    connection.request("POST", path, content, {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


if __name__ == "__main__":
    main()
