"""The scoring script of an Azure ML batch endpoint.

Azure calls `init` once in each process, and `run` with the paths of some files. Each file is a CSV
table with a header, or a JSON document that POST /invocations accepts. `init` starts a server on
this machine, for the model in AZUREML_MODEL_DIR.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

CONTENT_TYPES = {".csv": "text/csv;header=present", ".json": "application/json"}

STARTING_SECONDS = 600.0

url = ""
server: subprocess.Popen[bytes] | None = None


def init() -> None:
    """Start the server, and wait until the model is ready."""
    global url, server  # noqa: PLW0603 - Azure's interface has no other place
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {
        "COHORT_HOST": "127.0.0.1",
        "COHORT_PORT": str(port),
        "COHORT_GRPC_PORT": "0",
        "COHORT_DRAIN_NOTICE_SECONDS": "0",
    }
    server = subprocess.Popen(["cohort", "serve"], env={**os.environ, **settings})
    atexit.register(stop)
    ends = time.monotonic() + STARTING_SECONDS
    while not _is_ready():
        if server.poll() is not None or time.monotonic() > ends:
            raise RuntimeError("the server did not start: its log is above")
        time.sleep(0.2)


def stop() -> None:
    """Stop the server, and wait for its end."""
    if server is not None:
        server.terminate()
        server.wait()


def _is_ready() -> bool:
    try:
        with urlopen(f"{url}/health/ready", timeout=5):
            return True
    except (URLError, OSError):
        return False


def run(mini_batch: Sequence[str]) -> list[str]:
    """Return a line for each row of the files: the file's name, the row, and its prediction."""
    return [line for file in mini_batch for line in _lines_of(Path(file))]


def _lines_of(file: Path) -> list[str]:
    content_type = CONTENT_TYPES.get(file.suffix.lower(), "application/octet-stream")
    headers = {"content-type": content_type}
    request = Request(f"{url}/invocations", file.read_bytes(), headers, method="POST")
    try:
        with urlopen(request, timeout=STARTING_SECONDS) as answer:
            rows = json.load(answer)["predictions"]
    except HTTPError as error:  # Azure counts a mini-batch that raises as failed, and retries it
        raise RuntimeError(f"{file.name}: {json.load(error)['error']}") from error
    rows = rows if isinstance(rows, list) else [rows]
    return [
        f"{file.name}\t{number}\t{json.dumps(row, separators=(',', ':'))}"
        for number, row in enumerate(rows)
    ]
