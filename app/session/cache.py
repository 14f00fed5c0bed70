"""Graphs as ONNX Runtime optimized them for this CPU, kept between starts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from functools import cache
from pathlib import Path

from app.session.runtime import VERSION

SMALLEST = 1 << 20
LARGEST = 1 << 31  # a protobuf ends at 2 GiB


class OptimizedGraph:
    """Where the optimized form of one model file lies, or shall lie.

    The name holds the digest of everything the graph depends on and that of its own content, so
    what is stale is not found and what is damaged is not used.
    """

    def __init__(self, folder: Path, model: Path, settings: str) -> None:
        parts = (_digest(model), VERSION, _machine(), settings)
        self._folder = folder / "optimized"
        self._key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def find(self) -> Path | None:
        """The kept graph, whole; what is damaged is deleted."""
        for path in self._folder.glob(f"{self._key}-*.onnx"):
            with contextlib.suppress(OSError):
                if path.stem.rpartition("-")[2] == _digest(path):
                    return path
            self.discard(path)
        return None

    def room(self) -> Path:
        """A new file beside the kept graphs, to be written to; an OSError without one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".writing-", suffix=".onnx")
        os.close(handle)
        return Path(name)

    def keep(self, written: Path) -> None:
        """Make `written`, from `room`, the kept graph."""
        written.replace(self._folder / f"{self._key}-{_digest(written)}.onnx")

    def discard(self, path: Path) -> None:
        """Delete, if possible, a kept graph that turned out useless."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


@cache
def _machine() -> str:
    """The CPU, as far as the optimizer looks at it: its kind and what it can do."""
    said = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                said.append(line)
            elif not line:
                break
    return "\n".join(said)
