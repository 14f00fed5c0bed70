"""The script that fetches ONNX Runtime for browsers, from a local registry."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e.processes import ROOT

SCRIPT = ROOT / "deploy/playground/fetch.py"
PACKAGE = "registry/onnxruntime-web/-/onnxruntime-web-9.9.9.tgz"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry that has one package, with the script and its lock file."""
    file = tmp_path / PACKAGE
    file.parent.mkdir(parents=True)
    file.write_bytes(package())
    lock(tmp_path, file.read_bytes())
    shutil.copy(SCRIPT, tmp_path)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "registry"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def package() -> bytes:
    """Return a package as npm has it: its own folder, with more files than are wanted."""
    made = io.BytesIO()
    names = [
        line.strip('", ')
        for line in SCRIPT.read_text().splitlines()
        if line.startswith('    "dist/')
    ]
    assert len(names) == 6
    texts = {name: name for name in names} | {"package.json": '{"version": "9.9.9"}', "more": "x"}
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


def lock(folder: Path, content: bytes) -> None:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    locked = {"version": "9.9.9", "integrity": integrity}
    text = json.dumps({"packages": {"node_modules/onnxruntime-web": locked}})
    (folder / "package-lock.json").write_text(text)


def fetch(folder: Path, registry: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run(
        [sys.executable, folder / "fetch.py", "--into", folder / "into"],
        env={**os.environ, "NPM_CONFIG_REGISTRY": registry},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_locked_release_is_fetched_once(registry: str, tmp_path: Path) -> None:
    """Its seven files and no others are fetched; the next call sends no request."""
    done = fetch(tmp_path, registry)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "into").iterdir())) == 7
    assert (tmp_path / "into/ort.wasm.min.mjs").read_text() == "dist/ort.wasm.min.mjs"
    (tmp_path / PACKAGE).unlink()
    again = fetch(tmp_path, registry)
    assert (again.returncode, again.stdout) == (0, "")


def test_another_package_is_refused(registry: str, tmp_path: Path) -> None:
    """What is not of the locked digest is not written."""
    lock(tmp_path, b"another")
    done = fetch(tmp_path, registry)
    assert done.returncode == 1
    assert "is not the locked package" in done.stderr
    assert not (tmp_path / "into").exists()


def test_a_registry_without_it_is_named(registry: str, tmp_path: Path) -> None:
    """The error has the variable that selects another registry."""
    (tmp_path / PACKAGE).unlink()
    done = fetch(tmp_path, registry)
    assert done.returncode == 1
    assert "onnxruntime-web-9.9.9.tgz cannot be fetched: HTTP Error 404" in done.stderr
    assert "npm_config_registry" in done.stderr
