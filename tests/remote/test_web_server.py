"""Models at a web server, which has SHA256SUMS in place of a listing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from cohort.remote import Mirror
from cohort.remote.store import read_index
from tests.e2e.processes import free_port
from tests.remote.servers import KEYS, network
from tests.waiting import PATIENCE, wait_until

WITH_RANGES = """
import sys
from flask import Flask, send_from_directory
app = Flask(__name__, static_folder=None)
app.route("/<path:path>")(lambda path: send_from_directory(sys.argv[1], path))
app.run("127.0.0.1", int(sys.argv[2]))
"""
WITHOUT_RANGES = """
import sys
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
handler = partial(SimpleHTTPRequestHandler, directory=sys.argv[1])
HTTPServer(("127.0.0.1", int(sys.argv[2])), handler).serve_forever()
"""

LARGE = bytes(range(256)) * (4 << 12)


@contextmanager
def web_server(folder: Path, program: str) -> Iterator[int]:
    """Serve a folder in a separate process, and yield its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(port)], stderr=subprocess.DEVNULL
    )

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/").status_code > 0
        return False

    try:
        wait_until(answers)
        yield port
    finally:
        process.kill()
        process.wait()


def write(folder: Path, **extra: bytes) -> None:
    """A repository of one model, and its index as sha256sum writes it."""
    files = {"m/1/model.onnx": LARGE, "m/config.yaml": b"timeout_ms: 1000\n", **extra}
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    command = "find . -type f ! -name SHA256SUMS -exec sha256sum {} + > SHA256SUMS"
    subprocess.run(command, shell=True, cwd=folder, check=True)


@pytest.mark.parametrize("program", [WITH_RANGES, WITHOUT_RANGES])
def test_models_of_a_web_server_are_fetched(tmp_path: Path, program: str) -> None:
    """Files in SHA256SUMS are fetched and verified; a broken download continues or restarts."""
    write(tmp_path / "web")
    with web_server(tmp_path / "web", program) as port, network(port) as between:
        between.cut = len(LARGE) // 2
        mirror = Mirror(f"http://127.0.0.1:{between.port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        assert not (mirror.models / "m/1").exists()
        between.cut = None
        mirror.close()
        mirror = Mirror(f"http://127.0.0.1:{between.port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        mirror.close()
    assert (mirror.models / "m/1/model.onnx").read_bytes() == LARGE
    assert (mirror.models / "m/config.yaml").read_bytes() == b"timeout_ms: 1000\n"
    asked_for_the_rest = b"range: bytes=" in b"".join(between.requests).lower()
    assert asked_for_the_rest
    resumed = mirror.status.fetched_bytes < len(LARGE)
    assert resumed == (program == WITH_RANGES)


def test_server_without_an_index_is_told_how_to_make_one(tmp_path: Path) -> None:
    """A web server cannot list a folder: the message has the command that makes the list."""
    with web_server(tmp_path, WITHOUT_RANGES) as port:
        mirror = Mirror(f"http://127.0.0.1:{port}", tmp_path / "mirror")
        mirror.sync()
        mirror.close()
    assert "SHA256SUMS not found: a web server cannot list a folder" in mirror.status.failure
    assert "sha256sum {} + > SHA256SUMS" in mirror.status.failure


def test_file_that_is_not_what_the_index_says_is_refused(tmp_path: Path) -> None:
    """A swapped file is not served, and the message has both digests."""
    write(tmp_path / "web")
    (tmp_path / "web/m/1/model.onnx").write_bytes(b"swapped")
    with web_server(tmp_path / "web", WITH_RANGES) as port:
        mirror = Mirror(f"http://127.0.0.1:{port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        mirror.close()
    (problem,) = mirror.status.problems
    assert hashlib.sha256(LARGE).hexdigest()[:12] in str(problem)
    assert not (mirror.models / "m/1").exists()


DIGEST = "0" * 64


@pytest.mark.parametrize(
    "line", ["hello", f"{DIGEST[1:]}  m/1/model.onnx", f"\\{DIGEST}  a\\nb", f"{DIGEST} m"]
)
def test_index_with_a_line_that_is_none_is_refused(line: str) -> None:
    """The message has the number of the line."""
    with pytest.raises(ValueError, match="line 2 is not a SHA-256 and a path"):
        read_index(f"{DIGEST}  m/1/model.onnx\n{line}\n")


@pytest.mark.parametrize("path", ["m/1/../../../evil", "/etc/evil", "m/1//evil", "m/1/a\\evil"])
def test_index_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    """A path out of the folder is refused, with the version or the name that it is part of."""
    write(tmp_path / "web")
    with (tmp_path / "web/SHA256SUMS").open("a") as index:
        index.write(f"{DIGEST}  {path}\n")
    with web_server(tmp_path / "web", WITHOUT_RANGES) as port:
        mirror = Mirror(f"http://127.0.0.1:{port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        mirror.close()
    assert mirror.status.problems or mirror.status.failure
    assert not [found for found in tmp_path.rglob("*") if "evil" in found.name]


SECRET = b"AKIA-SECRET-OF-THE-METADATA-SERVICE\n"


@dataclass
class Site:
    """A web server in this process that redirects, and answers everything else with SECRET."""

    port: int
    redirects: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    asked: list[str] = field(default_factory=list)


@contextmanager
def site(host: str = "127.0.0.1") -> Iterator[Site]:
    """Start one."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            made.asked.append(self.path)
            location = made.redirects.get(self.path)
            content = made.files.get(self.path, SECRET)
            self.send_response(302 if location else made.status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer((host, 0), Handler)
    made = Site(server.server_port)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.1", "user:password@127.0.0.2"])
@pytest.mark.parametrize("path", ["/SHA256SUMS", "/m/config.yaml", "/m/1/model.onnx"])
def test_redirect_to_another_host_is_refused_by_name(tmp_path: Path, host: str, path: str) -> None:
    """The other host or port gets no request, and the problem names it."""
    name = host.rpartition("@")[2]
    with site() as web, site(name) as inside:
        index = f"{DIGEST}  m/1/model.onnx\n{DIGEST}  m/config.yaml\n".encode()
        web.files = {"/SHA256SUMS": index, "/m/config.yaml": b""}
        web.redirects = {path: f"http://{host}:{inside.port}/latest/meta-data/role"}
        mirror = Mirror(f"http://127.0.0.1:{web.port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        mirror.close()
    assert not inside.asked
    said = " ".join([mirror.status.failure, *map(str, mirror.status.problems)])
    assert f"redirects to another host, '{name}:{inside.port}', which is not followed" in said
    assert "password" not in said


def test_redirect_on_the_host_is_followed(tmp_path: Path) -> None:
    """A web server may keep its files elsewhere on itself."""
    with site() as web:
        digest = hashlib.sha256(LARGE).hexdigest()
        web.redirects = {"/SHA256SUMS": "/kept/index", "/m/1/model.onnx": "kept"}
        web.files = {
            "/kept/index": f"{digest}  m/1/model.onnx\n".encode(),
            "/m/1/kept": LARGE,
        }
        mirror = Mirror(f"http://127.0.0.1:{web.port}", tmp_path / "mirror")
        mirror.sync()
        assert mirror.wait(PATIENCE)
        mirror.close()
    assert (mirror.models / "m/1/model.onnx").read_bytes() == LARGE


@pytest.mark.parametrize("status", [200, 400, 401, 404, 418])
@pytest.mark.parametrize("address", ["http://127.0.0.1:{}", "s3://bucket/models"])
def test_answer_is_never_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, status: int
) -> None:
    """Every user can read a problem, and an answer may come from another server."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with site() as web:
        web.status = status
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
        mirror = Mirror(address.format(web.port), tmp_path / "mirror")
        mirror.sync()
        mirror.close()
    assert web.asked
    assert mirror.status.failure
    assert "SECRET" not in f"{mirror.status.failure} {mirror.status.problems}"
