"""Cache of graphs that ONNX Runtime optimized for this CPU, if keeping them saves time.

Measured on one core: a kept graph saves about a third of the opening time if it has many nodes
(2000 nodes: 50 → 33 ms). It saves no time if weights are most of the file (256 MB in 9 nodes: 0.3 s
with and without). Checking its digest takes 0.7 ms per MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from functools import cache
from pathlib import Path

from cohort.session.digests import Digests, hashing_seconds
from cohort.session.runtime import ORT_VERSION

SLOW = 0.25  # seconds; a model that opens faster is opened from its own file each time
MAX_MODEL_BYTES = 1 << 29  # keeping a graph opens the model a second time, in memory too
COPIES_WHILE_KEPT = 3  # additional copies of the model in memory (measured with 500 MB)


def pays(opening: float, hashing: float) -> bool:
    """Return True if a graph that opens in `opening` seconds and hashes in `hashing` pays off.

    The kept graph is hashed at each start, to save a third of the opening time. The model is hashed
    as well, but its profile needs that digest anyway.
    """
    return opening >= SLOW and hashing <= opening / 4


class OptimizedGraph:
    """The place of one model file's optimized graph, whether or not it exists yet.

    The name starts with a key that is known without reading the model, so a model without a kept
    graph costs nothing. The digests of the model and of the kept graph follow, so a stale or
    damaged graph is not used.

    folder: the cache folder; the graphs are in its subfolder `optimized/`.
    model: the model file. Raises OSError if it does not exist.
    settings: all other settings that affect the graph, except the CPU and ONNX Runtime.
    digests: the digests of the model and of kept graphs.
    """

    def __init__(self, folder: Path, model: Path, settings: str, digests: Digests) -> None:
        self._size = model.stat().st_size
        known = (str(model.resolve()), str(self._size), ORT_VERSION, cpu(), settings)
        self._folder, self._model, self._digests = folder / "optimized", model, digests
        self._key = hashlib.sha256("\n".join(known).encode()).hexdigest()[:24]

    def find(self) -> Path | None:
        """Return the kept graph; delete stale or damaged ones."""
        for path in self._folder.glob(f"{self._key}-*.onnx"):
            with contextlib.suppress(OSError):
                if path.stem == self._stem(path):
                    return path
            self.discard(path)
        return None

    def worth_keeping(self, opening: float) -> bool:
        """Return True if keeping the graph of a model that opens in `opening` seconds pays off."""
        return pays(opening, hashing_seconds(self._size))

    @property
    def memory_needed(self) -> int:
        """The memory in bytes that `keep` requires."""
        return self._size * COPIES_WHILE_KEPT

    def reserve(self) -> Path:
        """Create an empty file to write to, in the folder of the kept graphs. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".writing-", suffix=".onnx")
        os.close(handle)
        return Path(name)

    def keep(self, written: Path) -> None:
        """Make `written`, a file from `reserve`, the kept graph. Raises OSError."""
        written.replace(self._folder / f"{self._stem(written)}.onnx")

    def discard(self, path: Path) -> None:
        """Delete a useless file, if possible."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _stem(self, graph: Path) -> str:
        return f"{self._key}-{self._digests.of(self._model)[:32]}-{self._digests.of(graph)[:32]}"


@cache
def cpu() -> str:
    """Describe the CPU properties that the optimizer uses: its model and its features."""
    described = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                described.append(line)
            elif not line:
                break
    return "\n".join(described)
