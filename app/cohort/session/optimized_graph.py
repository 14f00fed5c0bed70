"""Graphs as ONNX Runtime optimized them for this CPU, kept between starts where that pays.

Measured (one core): a kept graph saves about a third of the opening of a graph of many nodes
(2000 nodes: 50 → 33 ms), and nothing where weights are most of the file (256 MB in 9 nodes: 0.3 s
with or without), while making sure that it is undamaged takes 0.7 ms per MB.
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
COPIES_WHILE_KEPT = 3  # of the model in memory meanwhile, besides (measured with 500 MB)


def pays(opening: float, hashing: float) -> bool:
    """Whether to keep a graph that took `opening` seconds and whose file is hashed in `hashing`.

    The kept graph is hashed at each start, to save a third of the opening. (So is the model, but
    its profile needs that as well.)
    """
    return opening >= SLOW and hashing <= opening / 4


class OptimizedGraph:
    """Where the optimized form of one model file is kept, or will be.

    The name starts with what is known without reading the model, so that a model that has none
    costs nothing; then come the digests of the model and of the kept graph itself, so that a stale
    or damaged graph is not used.

    folder: of the cache; the graphs are below it, in `optimized/`.
    model: the model file. Raises OSError where it does not exist.
    settings: everything else the graph depends on, besides the CPU and ONNX Runtime.
    digests: of the model and of kept graphs.
    """

    def __init__(self, folder: Path, model: Path, settings: str, digests: Digests) -> None:
        self._size = model.stat().st_size
        known = (str(model.resolve()), str(self._size), ORT_VERSION, cpu(), settings)
        self._folder, self._model, self._digests = folder / "optimized", model, digests
        self._key = hashlib.sha256("\n".join(known).encode()).hexdigest()[:24]

    def find(self) -> Path | None:
        """The kept graph; a stale or damaged one is deleted."""
        for path in self._folder.glob(f"{self._key}-*.onnx"):
            with contextlib.suppress(OSError):
                if path.stem == self._stem(path):
                    return path
            self.discard(path)
        return None

    def worth_keeping(self, opening: float) -> bool:
        """Whether keeping it pays, given that the model took `opening` seconds to open."""
        return pays(opening, hashing_seconds(self._size))

    @property
    def memory_needed(self) -> int:
        """The bytes that keeping it takes."""
        return self._size * COPIES_WHILE_KEPT

    def reserve(self) -> Path:
        """A new empty file beside the kept graphs, to be written to. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".writing-", suffix=".onnx")
        os.close(handle)
        return Path(name)

    def keep(self, written: Path) -> None:
        """Make `written`, from `reserve`, the kept graph. Raises OSError."""
        written.replace(self._folder / f"{self._stem(written)}.onnx")

    def discard(self, path: Path) -> None:
        """Delete, if possible, a file that turned out useless."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _stem(self, graph: Path) -> str:
        return f"{self._key}-{self._digests.of(self._model)[:32]}-{self._digests.of(graph)[:32]}"


@cache
def cpu() -> str:
    """The CPU, as far as the optimizer looks at it: its kind and what it can do."""
    described = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                described.append(line)
            elif not line:
                break
    return "\n".join(described)
