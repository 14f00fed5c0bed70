"""Structured logs on standard error, written by a separate thread.

A reader of standard error may stop reading; a write to the full pipe then blocks. So the loggers
only queue their records, and a thread renders and writes them.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple, TextIO, TypeVar

import orjson
import structlog
from structlog.typing import EventDict, Processor

from cohort.observability.access_log import AccessLog, Answered, json_lines

T = TypeVar("T")

MAX_QUEUE = 10_000
"""Lines that may wait to be written; further lines are dropped and counted."""

LINES_AT_ONCE = 64

LINES_MADE_AT_ONCE = 512
"""Lines of requests that are made before other threads run, in about half a millisecond.

After each block the event loop has to take the interpreter's lock again. With blocks of 64 lines
this was expensive.
"""

CLOSING_SECONDS = 2.0
"""Maximum time that the process waits at its end until all lines are written."""

Render = Callable[[EventDict], str]

Level = Literal["debug", "info", "warning", "error"]

ALWAYS = ("cohort.access", "cohort.admin")
"""Loggers that are enabled by settings, regardless of the level."""

_PREPARE: tuple[Processor, ...] = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    # Render tracebacks at once: they would keep their frames, and callers' data in these.
    structlog.processors.format_exc_info,
)


class _Lines(NamedTuple):
    """Objects that lines are made from, and the function that makes the lines."""

    of: Sequence[Any]
    make: Callable[[Any], str]


Queued = EventDict | str | _Lines | threading.Event


class LogWriter(logging.Handler):
    """Queues records, and writes them on its own thread.

    dropped: Lines that were not written, because too many waited or the stream failed.

    stream: The target of the lines.
    render: Makes the line of an event, without its end; called on the thread.
    limit: Maximum of lines that wait.
    """

    def __init__(self, stream: TextIO, render: Render, *, limit: int = MAX_QUEUE) -> None:
        super().__init__()
        self.dropped = 0
        self._stream = stream
        self.render = render
        self._limit = limit
        # Its `put` is atomic: a signal's handler may log while the main thread does.
        self._queue: SimpleQueue[Queued] = SimpleQueue()
        self._made = self._written = 0  # lines of `write_lines` that were queued, and written
        self._reported = 0
        self._thread = threading.Thread(target=self._work, name="cohort-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; drop it if too many wait."""
        if self._queue.qsize() >= self._limit:
            self.dropped += 1
            return
        # structlog's own records are prepared, and have no other owner.
        ours = record.msg.__class__ is dict
        self._queue.put(record.msg if ours else _prepared(record))

    def write(self, text: str) -> None:
        """Queue whole lines for people, to be written as they are."""
        self._queue.put(text)

    def write_lines(self, of: Sequence[T], make: Callable[[Sequence[T]], str]) -> None:
        """Queue objects that the thread turns into lines; drop those without room.

        They have a separate limit, so that they and other lines do not displace each other. Must be
        called from one thread.
        """
        room = max(0, self._limit - (self._made - self._written))
        self.dropped += max(0, len(of) - room)
        for first in range(0, min(len(of), room), LINES_MADE_AT_ONCE):
            part = _Lines(of[first : min(first + LINES_MADE_AT_ONCE, room)], make)
            self._made += len(part.of)
            self._queue.put(part)

    def flush_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` until all queued lines are written; True if they are."""
        written = threading.Event()
        self._queue.put(written)
        return written.wait(seconds)

    def _work(self) -> None:
        while True:
            waiting = [self._queue.get()]
            # A part of _Lines ends the batch: other threads can run after it is written.
            while len(waiting) < LINES_AT_ONCE and not isinstance(waiting[-1], _Lines):
                try:
                    waiting.append(self._queue.get_nowait())
                except Empty:
                    break
            self._write([one for one in waiting if not isinstance(one, threading.Event)])
            if isinstance(last := waiting[-1], _Lines):
                self._written += len(last.of)
            if missing := self.dropped - self._reported:
                self._reported += missing
                self._write([_notice(missing)])
            for one in waiting:
                if isinstance(one, threading.Event):
                    one.set()

    def _write(self, events: Sequence[EventDict | str | _Lines]) -> None:
        lines = []
        for event in events:
            try:
                if isinstance(event, str):
                    lines.append(event)
                elif isinstance(event, _Lines):
                    lines.append(event.make(event.of))
                else:
                    lines.append(self.render(event) + "\n")
            except Exception as error:  # noqa: BLE001 - a value's own repr may raise anything
                lines.append(self.render(_notice(1, f"{type(error).__name__}: {error}")) + "\n")
        try:
            _write_all(self._stream, "".join(lines))
        except (OSError, ValueError):  # the stream is closed
            lost = sum(len(one.of) if isinstance(one, _Lines) else 1 for one in events)
            self.dropped += lost
            self._reported += lost


def _prepared(record: logging.LogRecord) -> EventDict:
    """Make the event of another library's record."""
    event: EventDict = {"event": record.getMessage(), "_record": record}
    if record.exc_info:
        event["exc_info"] = record.exc_info
    logger = logging.getLogger(record.name)
    for process in _PREPARE:
        event = process(logger, record.levelname.lower(), event)  # type: ignore[assignment]
    del event["_record"]
    return event


def _notice(lines: int, reason: str = "they could not be written in time") -> EventDict:
    text = "log lines were dropped"
    record = logging.makeLogRecord({"name": "cohort", "levelname": "WARNING", "msg": text})
    return {**_prepared(record), "lines": lines, "reason": reason}


def _write_all(stream: TextIO, text: str) -> None:
    """Write `text`, without the stream's own lock if it is a file.

    A thread that waits for a full pipe while it holds that lock would keep the process from ending.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        stream.write(text)
        return
    data = memoryview(text.encode(errors="backslashreplace"))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process made the shared file non-blocking
            select.select([], [descriptor], [])


@contextmanager
def configured(
    form: Literal["json", "console"], level: Level = "info", worker: int | None = None
) -> Iterator[LogWriter]:
    """Log as in `configure`; at the end write queued lines, for at most CLOSING_SECONDS."""
    writer = configure(form, level, worker)
    try:
        yield writer
    finally:
        flush()


def flush() -> None:
    """Write queued lines, for at most CLOSING_SECONDS; from any thread."""
    for writer in _writers():
        writer.flush_within(CLOSING_SECONDS)


def write(text: str) -> None:
    """Write whole lines unchanged, after earlier log lines; the caller does not wait."""
    for writer in _writers():
        writer.write(text)


def _writers() -> list[LogWriter]:
    return [one for one in logging.getLogger().handlers if isinstance(one, LogWriter)]


def configure(
    form: Literal["json", "console"], level: Level = "info", worker: int | None = None
) -> LogWriter:
    """Configure structlog and the standard library's logging in the same way, one line per record.

    form: "json" for machines, "console" for people.
    level: The lowest level that is logged, except by the loggers in ALWAYS; default "info".
    worker: The number of this worker, added to each line; default None: a single process.
    """
    whose = {} if worker is None else {"worker": worker}
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )

    def render(event: EventDict) -> str:
        return str(renderer(None, "", {**event, **whose}))

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_PREPARE,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    writer = LogWriter(sys.stderr, render)
    root = logging.getLogger()
    root.handlers = [writer]
    root.setLevel(level.upper())
    for name in ALWAYS:
        logging.getLogger(name).setLevel(logging.INFO)
    if level != "debug":  # uvicorn's info lines repeat Cohort's
        logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    return writer


def join_program() -> None:
    """Log through the standard library's logging, as the surrounding program configures it.

    If the program has configured structlog, that stays unchanged.
    """
    if structlog.is_configured():
        return

    def render(_: object, __: str, event: EventDict) -> str:
        words = [str(event.pop("event")), *(f"{name}={value}" for name, value in event.items())]
        return " ".join(words)

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def access_log(writer: LogWriter, form: Literal["json", "console"]) -> AccessLog:
    """Return an access log that writes among the other lines of a writer, in their form."""

    def for_people(requests: Sequence[Answered]) -> str:
        lines = json_lines(requests).splitlines()
        return "".join(writer.render(orjson.loads(line)) + "\n" for line in lines)

    make = json_lines if form == "json" else for_people
    return AccessLog(lambda requests: writer.write_lines(requests, make))
