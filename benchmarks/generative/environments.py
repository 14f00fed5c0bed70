"""Environments of the other engines, in build/bench, made on demand."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import BUILD, find_uv, install_once

PEERS = Path(__file__).parent / "peers"
"""Programs of the candidates."""


@dataclass(frozen=True)
class PythonPackages:
    """A virtual environment with packages of PyPI."""

    name: str
    packages: tuple[str, ...]

    def command(self, program: Path) -> list[str]:
        """Return the command that runs a program in it. Raises RuntimeError."""
        python = BUILD / f"env-{self.name}" / "bin" / "python"
        install_once(python.parent / "installed", self.packages, [
            [find_uv(), "venv", "-q", "--clear", "--python", sys.executable,
             str(python.parents[1])],
            [find_uv(), "pip", "install", "-q", "--python", str(python), *self.packages],
        ])  # fmt: skip
        return [str(python), str(program)]


@dataclass(frozen=True)
class NodePackages:
    """A folder with packages of npm, installed without their scripts."""

    name: str
    packages: tuple[str, ...]

    def command(self, program: Path) -> list[str]:
        """Return the command that runs a copy of a program in it. Raises RuntimeError."""
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("not installed: there is no npm")
        folder = BUILD / f"env-{self.name}"
        folder.mkdir(parents=True, exist_ok=True)
        install_once(folder / "installed", self.packages, [
            [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--omit=optional",
             "--no-audit", "--no-fund", *self.packages],
        ])  # fmt: skip
        copied = folder / program.name  # modules are found from the program's folder
        copied.write_bytes(program.read_bytes())
        return ["node", str(copied)]


GENAI = PythonPackages(
    "generative-genai", ("onnxruntime-genai==0.18.0", "onnxruntime==1.31.1", "numpy")
)
OPENVINO = PythonPackages("generative-openvino", ("openvino-genai==2026.4.1.0", "numpy"))
LLAMA = NodePackages(
    "generative-llama", ("node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1")
)
GGUF = PythonPackages("generative-gguf", ("gguf", "numpy"))
