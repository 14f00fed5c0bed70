"""Graphs as ONNX Runtime optimized them for this CPU, kept between starts where that pays.

Measured (one core): a kept graph saves about a third of the opening of a graph of many nodes
(2000 nodes: 50 → 33 ms), and nothing where weights are most of the file (256 MB in 9 nodes: 0.3 s
with or without), while making sure that it is still the right one takes 0.7 ms per MB, twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
import time
from functools import cache
from pathlib import Path

from app.session.runtime import VERSION

SLOW = 0.25  # seconds; what opens faster than this is opened anew each time
LARGEST = 1 << 29  # bytes; keeping a graph opens it a second time, in memory too


def pays(opening: float, hashing: float) -> bool:
    """Whether to keep a graph that took `opening` seconds and whose file is hashed in `hashing`.

    Both the model and the kept graph are hashed at each start, to save a third of the opening.
    """
    return opening >= SLOW and 2 * hashing <= opening / 4


class OptimizedGraph:
    """Where the optimized form of one model file lies, or shall lie.

    The name starts with what is known without reading the model, so that a model that has none
    costs nothing; then come the digests of the model and of the kept graph itself, so that what
    is stale or damaged is not used.
    """

    def __init__(self, folder: Path, model: Path, settings: str) -> None:
        known = (str(model.resolve()), str(model.stat().st_size), VERSION, cpu(), settings)
        self._folder, self._model = folder / "optimized", model
        self._key = hashlib.sha256("\n".join(known).encode()).hexdigest()[:24]

    def find(self) -> Path | None:
        """The kept graph; one that is stale or damaged is deleted."""
        for path in self._folder.glob(f"{self._key}-*.onnx"):
            with contextlib.suppress(OSError):
                if path.stem == self._stem(path):
                    return path
            self.discard(path)
        return None

    def worth_keeping(self, opening: float) -> bool:
        """Whether keeping it pays, given that the model took `opening` seconds to open."""
        if opening < SLOW:
            return False
        start = time.monotonic()
        digest(self._model)
        return pays(opening, time.monotonic() - start)

    def room(self) -> Path:
        """A new file beside the kept graphs, to be written to; an OSError without one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".writing-", suffix=".onnx")
        os.close(handle)
        return Path(name)

    def keep(self, written: Path) -> None:
        """Make `written`, from `room`, the kept graph."""
        written.replace(self._folder / f"{self._stem(written)}.onnx")

    def discard(self, path: Path) -> None:
        """Delete, if possible, a file that turned out useless."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _stem(self, graph: Path) -> str:
        return f"{self._key}-{digest(self._model)}-{digest(graph)}"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


@cache
def cpu() -> str:
    """The CPU, as far as the optimizer looks at it: its kind and what it can do."""
    said = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                said.append(line)
            elif not line:
                break
    return "\n".join(said)
