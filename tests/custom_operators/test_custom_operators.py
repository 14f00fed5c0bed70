"""The custom operator of examples/custom-operator: built, served, and libraries that cannot be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import ROOT, Cohort, cohort

EXAMPLE = ROOT / "examples/custom-operator"
INCLUDE = Path(__file__).parent / "include"
MACHINE = 18
"""The offset of the processor in an ELF file."""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="builds a library with g++")

CRASHING = "#include <cstdlib>\n__attribute__((constructor)) void begin() { std::abort(); }\n"

UNUSABLE = {
    "missing.so": "custom operators 'missing.so' are not a file in any folder that COHORT_CUSTOM",
    "foreign.so": "custom operators 'foreign.so' are built for aarch64 (64 bits), and this Python",
    "text.so": "custom operators 'text.so' are not a library",
    "other.so": "custom operators 'other.so' cannot be loaded: Failed to get symbol Register",
    "crashing.so": "it crashed ONNX Runtime",
}


def build(source: str, library: Path) -> None:
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """One that inspects models, as operators have it, with the example's and with broken ones."""
    folder = tmp_path_factory.mktemp("custom")
    models, libraries = folder / "models", folder / "ops"
    subprocess.run([EXAMPLE / "build.sh", INCLUDE, libraries], check=True)
    subprocess.run([sys.executable, EXAMPLE / "example.py", models], check=True)
    built = (libraries / "libwrap_degrees.so").read_bytes()
    foreign = bytearray(built)
    foreign[MACHINE : MACHINE + 2] = (183).to_bytes(2, sys.byteorder)  # aarch64
    (libraries / "foreign.so").write_bytes(foreign)
    (libraries / "text.so").write_text("not a library, though its name says so")
    build("int nothing;\n", libraries / "other.so")
    build(CRASHING, libraries / "crashing.so")
    for name in UNUSABLE:
        broken = models / name.removesuffix(".so")
        shutil.copytree(models / "compass", broken)
        config = {"session": {"custom_op_libraries": [name]}}
        (broken / "config.yaml").write_text(json.dumps(config))
    with cohort(models, folder, custom_ops=libraries, inspection_seconds=60) as it:
        yield it


def test_the_example_is_built_and_served(server: Cohort) -> None:
    """Its build script builds it; the operator returns what the C++ code computes."""
    sent = {"input": [[370, -190], [180, 90]]}
    answer = httpx.post(f"{server.url}/models/compass/predict", json=sent)
    assert answer.json()["prediction"] == [[10, 170], [180, 90]], answer.text


@pytest.mark.parametrize(("library", "reason"), UNUSABLE.items(), ids=[*UNUSABLE])
def test_a_library_that_cannot_be_used_has_its_reason(
    server: Cohort, library: str, reason: str
) -> None:
    """The version is UNAVAILABLE, the reason names the library, and the server continues."""
    (version,) = server.get(f"/models/{library.removesuffix('.so')}").json()["versions"]
    assert version["state"] == "UNAVAILABLE"
    assert reason in version["reason"]
    assert library in version["reason"]
