"""The request to the child process that opens unknown models, and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cohort.row_independence import RowVerdict
from cohort.session import ModelRules, Opener, Provider, SessionOptions

MAX_VERDICT_BYTES = 1 << 16
"""Maximum size of a stored verdict; a longer one is recomputed at each load."""

_VERDICT = TypeAdapter(RowVerdict)


BYTES_PER_SECOND = 10 << 20
"""Model bytes per additional CPU second."""

COPIES = 3
"""Extra copies of a model that ONNX Runtime holds in memory while it opens the model."""


@dataclass(frozen=True, slots=True)
class Job:
    """A model to open, and its limits.

    path: The model's file.
    session: The `session` section of the model's config.
    memory_limit_mb: The config's memory limit for runs, if any.
    max_bytes, max_nodes, custom_ops: The rules for models.
    runs: True to run the model on the CPU with increasing numbers of rows.
    seconds: CPU time limit, plus an allowance for the model's size.
    memory: Memory limit in bytes, plus an allowance for the model's size.
    """

    path: str
    session: Mapping[str, Any]
    memory_limit_mb: int | None
    max_bytes: int | None
    max_nodes: int
    custom_ops: tuple[str, ...]
    runs: bool
    seconds: int
    memory: int

    def opener(self) -> Opener:
        """Return an opener like the server's, but on the CPU and without a cache."""
        libraries = tuple(self.session["custom_op_libraries"])
        return Opener(
            Path(self.path),
            chain=(Provider("cpu"),),
            options=SessionOptions(**{**self.session, "custom_op_libraries": libraries}),
            memory_limit_mb=self.memory_limit_mb,
            rules=ModelRules(self.max_bytes, self.max_nodes, tuple(map(Path, self.custom_ops))),
        )

    def limits(self, files: Iterable[Path]) -> tuple[int, int]:
        """Return the limits for a model of these files: CPU seconds and memory in bytes.

        The size is the space used on disk, so holes in a file do not raise the limits. Raises
        OSError.
        """
        size = sum(file.stat().st_blocks * 512 for file in files)
        return self.seconds + size // BYTES_PER_SECOND, self.memory + size * COPIES


OPENED, PEAK, ROW_VERDICT = "opened", "peak", "rows"
"""Keys of an answer: success of the opening, peak memory in bytes, and the row verdict."""


def write_verdict(verdict: RowVerdict) -> object:
    """Return the verdict as JSON values; None if it is longer than MAX_VERDICT_BYTES."""
    found: object = _VERDICT.dump_python(verdict, mode="json")
    return found if len(json.dumps(found)) <= MAX_VERDICT_BYTES else None


def read_verdict(content: object) -> RowVerdict | None:
    """Parse the result of `write_verdict`; None gives None. Raises ValueError if it is invalid."""
    return None if content is None else _VERDICT.validate_python(content)
