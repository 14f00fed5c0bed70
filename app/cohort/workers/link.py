"""A worker's end of the message link with its parent, on its event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from cohort.errors import CohortError
from cohort.workers.framing import Message, Unpacker, pack_message, split_bodies

log = structlog.get_logger("cohort")

_READ_AT_ONCE = 1 << 18

QuestionHandler = Callable[[Mapping[str, Any]], Awaitable[tuple[Mapping[str, Any], bytes]]]
"""Answers a question from its content; returns the answer and bytes. May raise CohortError."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The answer of one worker.

    pid: Its process.
    content: The answer; has `error` if the worker failed.
    body: The bytes of the answer.
    """

    pid: int
    content: Mapping[str, Any]
    body: bytes

    @property
    def error(self) -> str:
        """Why there is no answer; empty if there is one."""
        return str(self.content.get("error", ""))


@dataclass(frozen=True, slots=True)
class WorkerAnswers:
    """The answers of workers.

    answers: The answers received.
    silent: The processes that did not answer in time.
    more: Bytes that the parent has added.
    """

    answers: tuple[WorkerAnswer, ...]
    silent: tuple[int, ...] = ()
    more: tuple[bytes, ...] = ()

    @property
    def good(self) -> list[WorkerAnswer]:
        """The answers without an error."""
        return [one for one in self.answers if not one.error]


class Link:
    """Exchanges messages with the parent, and through it with the other workers.

    own: The socket of messages.
    handlers: The handlers of questions, by question.
    on_message: Called with each message that is neither a question nor an answer.
    """

    def __init__(
        self,
        own: socket.socket,
        handlers: Mapping[str, QuestionHandler],
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> None:
        own.setblocking(False)
        self._socket = own
        self._handlers = handlers
        self._on_message = on_message
        self._unpacker = Unpacker()
        self._asked: dict[int, asyncio.Future[WorkerAnswers]] = {}
        self._count = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin to read and to answer, on the running event loop."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message to the parent."""
        self._outgoing.put_nowait(pack_message(head, body))

    async def ask(
        self, what: str, content: Mapping[str, Any], *, to: str, seconds: float
    ) -> WorkerAnswers:
        """Ask other workers, and wait for their answers.

        to: "all", "others", or "judge".
        seconds: The time limit for answers.
        """
        self._count += 1
        number = self._count
        answered: asyncio.Future[WorkerAnswers] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        head = {"kind": "ask", "number": number, "what": what, "content": content}
        self.send({**head, "to": to, "seconds": seconds})
        try:
            return await answered
        finally:
            del self._asked[number]

    async def close(self) -> None:
        """Send the remaining messages, and close."""
        if self._tasks and not self._tasks[1].done():
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._outgoing.join()
        for task in (*self._tasks, *self._answering):
            task.cancel()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await self._outgoing.get()
            with suppress(OSError):  # the parent has ended, and this process will
                await loop.sock_sendall(self._socket, data)
            self._outgoing.task_done()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await loop.sock_recv(self._socket, _READ_AT_ONCE):
                for message in self._unpacker.feed(data):
                    self._take(message)

    def _take(self, message: Message) -> None:
        head, body = message
        match head["kind"]:
            case "ask":
                task = asyncio.ensure_future(self._answer(head))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case "answers":
                waiting = self._asked.get(head["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(_answers_in(head, body))
            case _:
                self._on_message(head)

    async def _answer(self, head: Mapping[str, Any]) -> None:
        content: Mapping[str, Any]
        try:
            content, answer = await self._handlers[head["what"]](head["content"])
        except CohortError as error:
            content, answer = {"error": str(error)}, b""
        except Exception as error:
            log.exception("a question of another worker failed", what=head["what"])
            content, answer = {"error": type(error).__name__}, b""
        self.send({"kind": "answer", "number": head["number"], "content": content}, answer)


def _answers_in(head: Mapping[str, Any], body: bytes) -> WorkerAnswers:
    bodies = split_bodies(head["sizes"], body)
    answers = tuple(
        WorkerAnswer(one["pid"], one, part)
        for one, part in zip(head["answers"], bodies, strict=False)
    )
    return WorkerAnswers(answers, tuple(head["silent"]), tuple(bodies[len(answers) :]))
