"""What keeps a process from answering as it should."""

from __future__ import annotations

from typing import NamedTuple

TROUBLES = ("device_lost", "run_stuck", "thread_missing", "loop_lagging")
"""The kinds of trouble."""


class Trouble(NamedTuple):
    """Something that is wrong with a process, and not with a file or a request.

    kind: One of TROUBLES.
    text: What is wrong, for anybody.
    where: The model concerned, for those who may know of it; default "": none is.
    lasting: Whether only a restart mends it; default False.
    """

    kind: str
    text: str
    where: str = ""
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text
