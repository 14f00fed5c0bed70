"""Other workers that answer what a test has them say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.operating import Readiness
from cohort.workers.link import Link, WorkerAnswer, WorkerAnswers
from cohort.workers.siblings import Siblings

READY, NOT = Readiness(True), Readiness(False, "own")


class FakeLink(Link):
    """Stands for a link.

    answers: Answers by question; default: no worker answers.
    asked: Asked questions: the question, its content, and its recipients.
    """

    def __init__(self, **answers: WorkerAnswers) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, Any], str]] = []

    async def ask(
        self, what: str, said: Mapping[str, Any], *, to: str, seconds: float
    ) -> WorkerAnswers:
        self.asked.append((what, said, to))
        return self.answers.get(what, WorkerAnswers(()))


def answer(pid: int, body: bytes = b"", **said: Any) -> WorkerAnswer:
    """Return the answer of a worker."""
    return WorkerAnswer(pid, {**said, "pid": pid}, body)


def worker(pid: int, **more: Any) -> dict[str, Any]:
    """Return a worker as its parent describes it, with its pid as its place."""
    told = {"pid": pid, "place": pid, "retiring": False, "ready": True, "reason": "no"}
    return {**told, "live": True, "live_reason": "", "settled": True, **more}


def siblings_of(link: Link, *workers: Mapping[str, Any], judge: int = 1) -> Siblings:
    """Return the others of the worker that is process 1 and in place 1."""
    siblings = Siblings(1, pid=1)
    siblings.connect(link)
    siblings.take_picture({"workers": workers, "judge": judge})
    return siblings
