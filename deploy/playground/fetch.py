"""Fetch ONNX Runtime for browsers, which the page runs models with: 33 MB to fetch, 41 MB of files.

    python deploy/playground/fetch.py                 # into app/cohort/http/playground/page
    python deploy/playground/fetch.py --into FOLDER   # as the image is built

It needs Python alone. The package's release and digest are in package-lock.json in this folder. It
comes from npm's registry, or from the one that `npm_config_registry` names, as for npm. Where the
folder has that release, nothing is fetched.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REGISTRY = "https://registry.npmjs.org"
PACKAGE = "onnxruntime-web"
MARK = "package.json"
"""Written last: a folder that has it has the others."""

FILES = (
    "dist/ort.wasm.min.mjs",
    "dist/ort-wasm-simd-threaded.mjs",
    "dist/ort-wasm-simd-threaded.wasm",
    "dist/ort.webgpu.min.mjs",
    "dist/ort-wasm-simd-threaded.asyncify.mjs",
    "dist/ort-wasm-simd-threaded.asyncify.wasm",
    MARK,
)
TRIES, TIMEOUT_SECONDS = 3, 60


def main() -> None:
    """Fetch the locked release, unless it is there."""
    parser = argparse.ArgumentParser(description="Fetch ONNX Runtime for browsers.")
    parser.add_argument(
        "--into", type=Path, default=ROOT / "app/cohort/http/playground/page/runtime"
    )
    into: Path = parser.parse_args().into
    lock = json.loads((HERE / "package-lock.json").read_text())
    locked = lock["packages"][f"node_modules/{PACKAGE}"]
    if fetched(into) == locked["version"]:
        return
    print(f"cohort: fetching {PACKAGE} {locked['version']} into {into} (33 MB)", flush=True)
    variables = {name.lower(): value for name, value in os.environ.items()}
    registry = variables.get("npm_config_registry", REGISTRY).rstrip("/")
    url = f"{registry}/{PACKAGE}/-/{PACKAGE}-{locked['version']}.tgz"
    put(verified(downloaded(url), locked["integrity"], url), into)


def fetched(folder: Path) -> str:
    """Return the release in a folder, or ""."""
    try:
        return str(json.loads((folder / MARK).read_text())["version"])
    except (OSError, ValueError, KeyError):
        return ""


def downloaded(url: str) -> bytes:
    """Return the content of an address, tried a few times."""
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
                return bytes(answer.read())
        except OSError as error:  # a network error, or a refusal of the registry
            if attempt == TRIES:
                sys.exit(
                    f"cohort: {url} cannot be fetched: {error}\n"
                    "To use another registry, set npm_config_registry to its address."
                )
            time.sleep(attempt)
    raise AssertionError


def verified(package: bytes, integrity: str, url: str) -> bytes:
    """Return the package, if it is the locked one."""
    algorithm, _, wanted = integrity.partition("-")
    digest = base64.b64encode(hashlib.new(algorithm, package).digest()).decode()
    if digest != wanted:
        sys.exit(f"cohort: {url} is not the locked package: its {algorithm} is {digest}")
    return package


def put(package: bytes, into: Path) -> None:
    """Write the files; each is whole or not there."""
    into.mkdir(parents=True, exist_ok=True)
    (into / MARK).unlink(missing_ok=True)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in FILES:
            found = archive.extractfile(f"package/{name}")
            if found is None:
                sys.exit(f"cohort: the package has no file {name}")
            with tempfile.NamedTemporaryFile(dir=into, delete=False) as file:
                file.write(found.read())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(into / Path(name).name)


if __name__ == "__main__":
    main()
