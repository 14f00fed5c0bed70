"""Run a server in its own network namespace and count the packets it sends to others.

`python -m tests.attacks.alone FOLDER` prints the counts as JSON. With `talk` instead of the folder,
this process itself connects and resolves a name; both must be counted.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from pathlib import Path

from tests.attacks import namespace


def serve(folder: Path) -> None:
    """Start, load, be asked over each API, be scraped, load again and drain."""
    import asyncio
    import shutil

    import httpx
    import numpy as np

    from tests.e2e.processes import COMMAND, MODELS, cohort, free_port
    from tests.rpc.client import connected, raw_request
    from tests.waiting import PATIENCE

    shutil.copytree(MODELS / "iris", folder / "models" / "iris")
    row = [[5.1, 3.5, 1.4, 0.2]]
    key = {"authorization": "Bearer token"}
    with (
        cohort(  # a forked one would be in the namespace of its fork server
            folder / "models", folder, program=COMMAND, grpc_port=free_port(), admin_token="token"
        ) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):  # fmt: skip
        found = client.get("/v2/models/iris").json()["inputs"][0]
        tensor = {**found, "shape": [1, 4], "data": row}
        for path, body in (
            ("/predict", {"input": row}),
            ("/v1/models/iris:predict", {"instances": row}),
            ("/v2/models/iris/infer", {"inputs": [tensor]}),
        ):
            client.post(path, json=body).raise_for_status()
        for path in ("/health", "/models", "/metrics", "/openapi.json", "/docs"):
            client.get(path, follow_redirects=True).raise_for_status()
        for action in ("unload", "load"):
            path = f"/v2/repository/models/iris/{action}"
            client.post(path, headers=key).raise_for_status()

        async def infer() -> None:
            async with connected(server.grpc) as caller:
                sent = raw_request("iris", {found["name"]: np.array(row, "f4")})
                await caller.call("ModelInfer", sent)

        asyncio.run(infer())
        shutil.copytree(folder / "models/iris/1", folder / "models/iris/9")
        server.wait_for("/v2/models/iris/versions/9/ready")
        assert server.stop() == 0, server.logged


def talk() -> None:
    """Make a connection and a name lookup, both of which must be counted."""
    with suppress(OSError), socket.socket() as connection:
        connection.connect(("192.0.2.1", 443))
    with suppress(OSError):
        socket.getaddrinfo("telemetry.example", 443)


if __name__ == "__main__":
    namespace.enter()
    (what,) = sys.argv[1:]
    if what == "talk":
        talk()
    else:
        serve(Path(what))
    sys.stdout.write(json.dumps(namespace.sent()))
