"""Exchange of states and questions between workers, through their parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import Any

from cohort.workers.asking import Question, Questions
from cohort.workers.framing import Message
from cohort.workers.merged_metrics import METRICS, EndedCounts, write_parent_metrics
from cohort.workers.roster import judge_among
from cohort.workers.worker_process import WorkerProcess


class Switchboard:
    """Passes questions on, and keeps the data that outlives a worker.

    unloaded: The models that operators unloaded; each new worker receives them.
    restarts: The number of replaced workers, by cause.

    workers: The existing workers, by process.
    count: The configured number of workers.
    """

    def __init__(self, workers: Mapping[int, WorkerProcess], count: int) -> None:
        self.unloaded: set[str] = set()
        self.restarts = Counter(dict.fromkeys(("crashed", "hung", "renewed"), 0))
        self._workers = workers
        self._count = count
        self._questions = Questions()
        self._ended = EndedCounts()
        self._sent: Mapping[str, Any] = {}

    @property
    def next_due(self) -> float:
        """The latest time of its next action, on the monotonic clock."""
        return self._questions.next_due()

    def hear(self, worker: WorkerProcess, message: Message) -> None:
        """Handle a message of a worker."""
        head, body = message
        match head["kind"]:
            case "hello":
                worker.send({"kind": "wanted", "unloaded": sorted(self.unloaded)})
                worker.introduced = True
                self._sent = {}
            case "state":
                worker.state = head
            case "ask":
                self._ask(worker, head)
            case "answer":
                question = self._questions.get(head["number"])
                if question is not None:
                    question.answered(worker.pid, head["content"], body)
                    if question.what == METRICS:
                        worker.metrics = body.decode()
            case "last":  # it answers no more questions
                worker.metrics = body.decode()

    def _ask(self, asker: WorkerProcess, head: Mapping[str, Any]) -> None:
        model = head["content"].get("model")
        if head["what"] == "unload":
            self.unloaded.add(model)
        elif head["what"] == "load":
            self.unloaded.discard(model)
        asked = [one for one in self._workers.values() if one.introduced]
        if head["to"] == "others":
            asked.remove(asker)
        elif head["to"] == "judge":
            judge = judge_among([one.member for one in self._workers.values()])
            asked = [one for one in asked if one.pid == judge]
        question = Question(
            asker.pid,
            head["number"],
            head["what"],
            monotonic() + head["seconds"],
            {one.pid for one in asked},
        )
        number = self._questions.add(question)
        for one in asked:
            one.send(
                {"kind": "ask", "number": number, "what": head["what"], "content": head["content"]}
            )

    def tick(self, now: float) -> None:
        """Reply to questions that are complete or expired, and send changed states to all."""
        for question in self._questions.finished(now):
            self._reply(question)
        members = [one.member for one in self._workers.values()]
        picture = {
            "kind": "host",
            "judge": judge_among(members),
            "workers": [
                {**one.state, "pid": one.pid, "place": one.place, "retiring": one.retiring}
                for one in self._workers.values()
            ],
        }
        if picture != self._sent:
            self._sent = picture
            for worker in self._workers.values():
                if worker.introduced:
                    worker.send(picture)

    def _reply(self, question: Question) -> None:
        asker = self._workers.get(question.asker)
        if asker is None:
            return
        head, body = question.reply()
        if question.what == METRICS:
            # For silent workers, their last metrics: no counter decreases because a worker is busy.
            kept = [one.metrics for one in self._workers.values() if one.pid in question.missing]
            ready = sum(bool(one.state.get("ready")) for one in self._workers.values())
            own = write_parent_metrics(self._count, ready, self.restarts)
            more = [self._ended.text(), own, *(one.encode() for one in kept)]
            head["sizes"] += map(len, more)
            body += b"".join(more)
        asker.send(head, body)

    def forget(self, worker: WorkerProcess) -> None:
        """Keep the counts of a worker that has ended."""
        self._ended.add(worker.metrics)
        self._questions.forget(worker.pid)
