"""Questions of one worker to all: missing workers and collected answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort.workers.framing import join_bodies


@dataclass(slots=True)
class Question:
    """A question that was passed on.

    asker: The process that asked.
    number: The asker's number of the question.
    what: The question.
    due: Answers are awaited until then, in seconds on the monotonic clock.
    missing: The processes that have not answered.
    answers: The answers, by process.
    """

    asker: int
    number: int
    what: str
    due: float
    missing: set[int]
    answers: dict[int, tuple[Mapping[str, Any], bytes]] = field(default_factory=dict)

    def answered(self, pid: int, head: Mapping[str, Any], body: bytes) -> None:
        """Record an answer."""
        if pid in self.missing:
            self.missing.discard(pid)
            self.answers[pid] = head, body

    def gone(self, pid: int) -> None:
        """Stop waiting for a process."""
        self.missing.discard(pid)

    def reply(self, **more: Any) -> tuple[dict[str, Any], bytes]:
        """Return the reply to the asker: the answers, and the processes without one in time."""
        sizes, body = join_bodies([body for _, body in self.answers.values()])
        heads = [{**head, "pid": pid} for pid, (head, _) in self.answers.items()]
        head = {
            "kind": "answers",
            "number": self.number,
            "answers": heads,
            "sizes": sizes,
            "silent": sorted(self.missing),
            **more,
        }
        return head, body


class Questions:
    """The questions that are not answered yet."""

    def __init__(self) -> None:
        self._open: dict[int, Question] = {}
        self._count = 0

    def add(self, question: Question) -> int:
        """Add a question; return the number that workers use in their answers."""
        self._count += 1
        self._open[self._count] = question
        return self._count

    def get(self, number: int) -> Question | None:
        """Return the question of a number; None if its asker no longer waits."""
        return self._open.get(number)

    def forget(self, pid: int) -> None:
        """Forget a process that has ended, as asker and as answerer."""
        self._open = {n: one for n, one in self._open.items() if one.asker != pid}
        for question in self._open.values():
            question.gone(pid)

    def finished(self, now: float) -> Iterable[Question]:
        """Remove and return the questions that all have answered or whose time has passed."""
        done = {n: one for n, one in self._open.items() if not one.missing or now >= one.due}
        for number in done:
            del self._open[number]
        return done.values()

    def next_due(self) -> float:
        """Return the time when the next question expires."""
        return min((one.due for one in self._open.values()), default=float("inf"))
