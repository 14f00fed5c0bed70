"""A real S3-compatible server in a separate process, behind a network that fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import boto3
import httpx

from tests.e2e.processes import ROOT, free_port
from tests.waiting import wait_until

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",  # it checks no credentials
    "AWS_REGION": "us-east-1",
}


@dataclass
class Bucket:
    """A separate bucket, and how to reach it."""

    name: str
    endpoint: str

    @property
    def url(self) -> str:
        """The address of the models in it."""
        return f"s3://{self.name}/models"

    @property
    def environment(self) -> Mapping[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=KEYS["AWS_REGION"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def put(self, path: str, content: bytes | Path) -> None:
        """Put a file into the models folder."""
        body = content if isinstance(content, bytes) else content.read_bytes()
        self.client.put_object(Bucket=self.name, Key=f"models/{path}", Body=body)

    def get(self, path: str) -> bytes:
        """Return a file of the models folder."""
        return bytes(self.client.get_object(Bucket=self.name, Key=f"models/{path}")["Body"].read())

    def put_folder(self, folder: Path, path: str) -> None:
        """Put all files of a folder there."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{path}/{file.relative_to(folder)}", file)

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=f"models/{path}")

    @property
    def paths(self) -> list[str]:
        """All files in the models folder."""
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return [one["Key"].removeprefix("models/") for one in found]


@dataclass
class S3Server:
    """A started server."""

    process: subprocess.Popen[bytes]
    port: int
    _buckets: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self) -> Bucket:
        """Return a new bucket, empty."""
        self._buckets += 1
        bucket = Bucket(f"bucket-{self._buckets}", self.endpoint)
        bucket.client.create_bucket(Bucket=bucket.name)
        return bucket


@contextmanager
def s3_server(folder: Path, port: int | None = None) -> Iterator[S3Server]:
    """Start moto's S3-compatible server; what it holds is lost when it ends."""
    port = free_port() if port is None else port
    with (folder / f"s3-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote.moto_server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **KEYS},
            cwd=ROOT,
        )
    server = S3Server(process, port)

    def answers() -> bool:
        assert process.poll() is None, (folder / f"s3-{port}.log").read_text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{server.endpoint}/moto-api/").status_code < 500
        return False

    try:
        wait_until(answers)
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass
class Network:
    """A proxy to a port that ends answers early, or holds up requests.

    cut: After this number of bytes of an answer its connection is closed, and each later one; None:
        never.
    hold_requests_after: After this number of bytes of requests on a connection, the rest waits.
    holding: Set once that is so.
    """

    port: int
    cut: int | None = None
    hold_requests_after: int | None = None
    holding: Event = field(default_factory=Event)
    release: Event = field(default_factory=Event)
    requests: list[bytes] = field(default_factory=list)
    _to: int = 0

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._to))
            Thread(target=self._pump_requests, args=(client, server), daemon=True).start()
            with server:
                self._pump_answers(server, client)
            client.shutdown(socket.SHUT_RDWR)  # closing alone would wait for the other thread

    def _pump_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            sent = 0
            while data := client.recv(65536):
                self.requests.append(data)
                sent += len(data)
                if self.hold_requests_after is not None and sent > self.hold_requests_after:
                    self.holding.set()
                    self.release.wait()
                    return
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _pump_answers(self, server: socket.socket, client: socket.socket) -> None:
        sent = 0
        while data := server.recv(65536):
            if self.cut is not None and sent + len(data) > self.cut:
                client.sendall(data[: max(0, self.cut - sent)])
                self.cut = 0
                return
            client.sendall(data)
            sent += len(data)


@contextmanager
def network(port: int) -> Iterator[Network]:
    """Yield a proxy in front of `port`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        between = Network(listener.getsockname()[1], _to=port)
        thread = Thread(target=between.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield between
        finally:
            between.release.set()
            listener.shutdown(socket.SHUT_RDWR)
