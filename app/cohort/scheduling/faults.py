"""Faults that keep a process from answering as it should."""

from __future__ import annotations

from typing import NamedTuple

FAULTS = ("device_lost", "run_stuck", "thread_missing", "loop_lagging")
"""The kinds of faults."""


class Fault(NamedTuple):
    """A fault of a process, as opposed to a file or a request.

    kind: One of `FAULTS`.
    text: The problem, without names of models.
    where: The model concerned, for callers that may see it; default "": no model.
    lasting: True if only a restart fixes it; default False.
    """

    kind: str
    text: str
    where: str = ""
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text
