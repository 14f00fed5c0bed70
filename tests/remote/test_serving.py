"""A server whose models are in a bucket, each a real process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGHUP
from threading import Event, Thread

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.platforms.starting import platform
from tests.remote.servers import Bucket, s3_server
from tests.waiting import wait_until


def put_model(bucket: Bucket, folder: Path, number: int, factor: float) -> None:
    """Put a version of `times` there, which multiplies by `factor`."""
    path = onnx_models.save(onnx_models.times(factor), folder / f"{number}.onnx")
    bucket.put(f"times/{number}/model.onnx", path)


def version(server: Cohort) -> str:
    """Return the version that answers."""
    body = {"inputs": {"x": [[1.0, 1.0, 1.0]]}}
    answer = httpx.post(f"{server.url}/models/times/predict", json=body).json()
    return str(answer.get("version"))


def test_artifacts_in_a_bucket_are_served_in_their_layout(bucket: Bucket, tmp_path: Path) -> None:
    """A single .onnx file that Vertex AI names by AIP_STORAGE_URI."""
    path = onnx_models.save(onnx_models.times(2.0), tmp_path / "doubled.onnx")
    bucket.put("doubled.onnx", path)
    port = free_port()
    environment = {
        **bucket.environment,
        "AIP_HTTP_PORT": str(port),
        "AIP_PREDICT_ROUTE": "/predict-here",
        "AIP_HEALTH_ROUTE": "/healthy",
        "AIP_STORAGE_URI": f"{bucket.url}/",
    }
    with platform(port, tmp_path, environment, ready="/healthy") as server:
        rows = {"instances": [[1.0, 2.0, 3.0]]}
        answer = httpx.post(f"{server.url}/predict-here", json=rows)
        assert answer.json() == {"predictions": [[2.0, 4.0, 6.0]]}


def test_bucket_is_served_followed_and_outlived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version takes over; an end of the bucket's server ends nothing; a restart serves."""
    with s3_server(tmp_path) as s3:
        bucket = s3.bucket()
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        put_model(bucket, tmp_path, 1, 2.0)
        with cohort(bucket.url, tmp_path) as server:
            assert version(server) == "1"
            put_model(bucket, tmp_path, 2, 3.0)
            server.process.send_signal(SIGHUP)
            wait_until(lambda: version(server) == "2")
            s3.process.kill()
            server.process.send_signal(SIGHUP)
            wait_until(lambda: "cannot be reached" in server.get("/health").text)
            assert version(server) == "2"
            assert "remote_repository_up 0.0" in server.get("/metrics").text
            assert server.get("/health/ready").status_code == 200
            assert server.stop() == 0
    with cohort(bucket.url, tmp_path) as server:
        assert version(server) == "2"
        assert "cannot be reached" in server.get("/health").text


stopped = Event()


class Trickle(BaseHTTPRequestHandler):
    """Gives a file of a folder; those of models that begin with `slow` come byte by byte."""

    folder: Path

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        content = (self.folder / self.path[1:]).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):
            while self.path.startswith("/slow") and len(content) > 1:
                self.wfile.write(content[:1])
                content = content[1:]
                stopped.wait(0.5)
            self.wfile.write(content)


@pytest.fixture
def trickling(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of a web server that gives what is in it."""
    folder = tmp_path / "web"
    folder.mkdir()
    handler = type("Handler", (Trickle,), {"folder": folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("slow", [1, 6])
def test_what_is_fetched_serves_while_others_trickle(
    tmp_path: Path, trickling: tuple[Path, str], slow: int
) -> None:
    """Slow models in all fetch slots hold up no other; `problems` has their rates."""
    folder, url = trickling
    names = [f"slow{number}" for number in range(slow)] + ["times"]
    index = ""
    for name in names:
        path = folder / name / "1/model.onnx"
        path.parent.mkdir(parents=True)
        onnx_models.save(onnx_models.times(2.0), path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        index += f"{digest}  {name}/1/model.onnx\n"
        with path.open("ab") as file:
            file.write(b"" if name == "times" else bytes(1000))
    (folder / "SHA256SUMS").write_text(index)
    with cohort(url, tmp_path) as server:
        assert version(server) == "1"
        assert server.get("/health/ready").status_code == 200
        told = server.get("/health").text
        for name in names[:-1]:
            assert f"{name}/1: comes slowly: " in told
        assert "KiB/s" in told
        assert server.stop() == 0
