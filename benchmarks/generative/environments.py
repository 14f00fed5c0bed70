"""Environments of the other engines, in build/bench, made on demand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import node_with, python_with

PEERS = Path(__file__).parent / "peers"
"""Programs of the candidates."""


@dataclass(frozen=True)
class PythonPackages:
    """A virtual environment with packages of PyPI."""

    name: str
    packages: tuple[str, ...]

    def command(self, program: Path) -> list[str]:
        """Return the command that runs a program in it. Raises RuntimeError."""
        return [str(python_with(self.name, self.packages)), str(program)]


@dataclass(frozen=True)
class NodePackages:
    """A folder with packages of npm, installed without their scripts."""

    name: str
    packages: tuple[str, ...]

    def command(self, program: Path) -> list[str]:
        """Return the command that runs a copy of a program in it. Raises RuntimeError."""
        folder = node_with(self.name, self.packages, "--omit=optional")
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
