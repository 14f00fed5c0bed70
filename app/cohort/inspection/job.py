"""What the process that opens unknown models is told, and what it answers."""

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
"""A longer one, of many or long names, is found again at each load."""

_VERDICT = TypeAdapter(RowVerdict)


BYTES_PER_SECOND = 10 << 20
"""A model gets another CPU second for so much of it."""

COPIES = 3
"""How many times ONNX Runtime has a model in memory while it opens one, besides."""


@dataclass(frozen=True, slots=True)
class Job:
    """A model to open, and its limits.

    path: The model's file.
    session: Its config's `session`.
    memory_limit_mb: Its config's limit for runs, if any.
    max_bytes, max_nodes, custom_ops: The rules for models.
    runs: Whether to run it, on the CPU, with more and more rows.
    seconds: The CPU time for it, besides what its size adds.
    memory: The bytes that it may take, besides what its size adds.
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
        """Opens the model as the server will, but on the CPU and without a cache."""
        libraries = tuple(self.session["custom_op_libraries"])
        return Opener(
            Path(self.path),
            chain=(Provider("cpu"),),
            options=SessionOptions(**{**self.session, "custom_op_libraries": libraries}),
            memory_limit_mb=self.memory_limit_mb,
            rules=ModelRules(self.max_bytes, self.max_nodes, tuple(map(Path, self.custom_ops))),
        )

    def limits(self, files: Iterable[Path]) -> tuple[int, int]:
        """The CPU seconds and the bytes of memory for a model of these files. Raises OSError.

        A file counts by what it takes on disk: a hole gives nobody time.
        """
        size = sum(file.stat().st_blocks * 512 for file in files)
        return self.seconds + size // BYTES_PER_SECOND, self.memory + size * COPIES


OPENED, PEAK, ROW_VERDICT = "opened", "peak", "rows"
"""The keys of an answer: whether the model was opened, the bytes of memory that it took, and
whether rows of the model influence each other."""


def write_verdict(verdict: RowVerdict) -> object:
    """What is known of rows, as JSON has it; None where that is long."""
    found: object = _VERDICT.dump_python(verdict, mode="json")
    return found if len(json.dumps(found)) <= MAX_VERDICT_BYTES else None


def read_verdict(content: object) -> RowVerdict | None:
    """What `write_verdict` gave, None for None. Raises ValueError for anything else."""
    return None if content is None else _VERDICT.validate_python(content)
