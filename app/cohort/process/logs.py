"""Structured logs on standard error, written by a thread of their own.

Whoever reads standard error may stop reading, and a write to a full pipe then waits for as long.
So the loggers only queue their records, and a thread renders and writes them.
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

LONGEST_QUEUE = 10_000
"""Lines that wait to be written at most; further ones are dropped and counted."""

LINES_AT_ONCE = 64

LINES_MADE_AT_ONCE = 512
"""Lines of requests that are made before other threads run, in half a millisecond or so.

Each time the event loop has to come by the interpreter's lock again, which 64 at once made dear.
"""

CLOSING_SECONDS = 2.0
"""How long the process waits at its end until all lines are written, at most."""

Render = Callable[[EventDict], str]

Level = Literal["debug", "info", "warning", "error"]

ALWAYS = ("cohort.access", "cohort.admin")
"""Loggers whose lines are asked for, and not a matter of the level."""

_PREPARE: tuple[Processor, ...] = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    # A traceback becomes text at once: it would hold its frames, and what callers sent in them.
    structlog.processors.format_exc_info,
)


class _Lines(NamedTuple):
    """Lines that are made of something else, and how."""

    of: Sequence[Any]
    make: Callable[[Any], str]


Queued = EventDict | str | _Lines | threading.Event


class LogWriter(logging.Handler):
    """Queues records, and writes them on a thread of its own.

    dropped: Lines that were not written, because too many waited or the stream takes no more.

    stream: Where lines go.
    render: Makes the line of an event, without its end; called on the thread.
    limit: Lines that wait at most.
    """

    def __init__(self, stream: TextIO, render: Render, *, limit: int = LONGEST_QUEUE) -> None:
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
        """Queue a record; drop it where too many wait."""
        if self._queue.qsize() >= self._limit:
            self.dropped += 1
            return
        # structlog's own are prepared, and nobody else holds them.
        ours = record.msg.__class__ is dict
        self._queue.put(record.msg if ours else _prepared(record))

    def write(self, text: str) -> None:
        """Queue whole lines for people, to be written as they are."""
        self._queue.put(text)

    def write_lines(self, of: Sequence[T], make: Callable[[Sequence[T]], str]) -> None:
        """Queue lines that the thread makes of something; drop those for which there is no room.

        They have their own room, so that they and the others do not displace each other. Called
        from one thread.
        """
        room = max(0, self._limit - (self._made - self._written))
        self.dropped += max(0, len(of) - room)
        for first in range(0, min(len(of), room), LINES_MADE_AT_ONCE):
            part = _Lines(of[first : min(first + LINES_MADE_AT_ONCE, room)], make)
            self._made += len(part.of)
            self._queue.put(part)

    def flush_within(self, seconds: float) -> bool:
        """Wait until all that was queued is written, but not longer; say whether it is."""
        written = threading.Event()
        self._queue.put(written)
        return written.wait(seconds)

    def _work(self) -> None:
        while True:
            waiting = [self._queue.get()]
            # Few lines are made of one part: other threads run when they are written.
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
        except (OSError, ValueError):  # nobody will ever read it
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
    """Write `text`, past the stream's own lock where it is a file.

    A thread that waits for a full pipe with that lock held would keep the process from ending.
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
        except BlockingIOError:  # whoever shares it has made it so
            select.select([], [descriptor], [])


@contextmanager
def configured(
    form: Literal["json", "console"], level: Level = "info", worker: int | None = None
) -> Iterator[LogWriter]:
    """Log by `configure`, and write what is queued at the end, for CLOSING_SECONDS at most."""
    writer = configure(form, level, worker)
    try:
        yield writer
    finally:
        flush()


def flush() -> None:
    """Write what is queued, for CLOSING_SECONDS at most; from any thread."""
    for writer in _writers():
        writer.flush_within(CLOSING_SECONDS)


def write(text: str) -> None:
    """Write whole lines as they are, after what was logged before; the caller does not wait."""
    for writer in _writers():
        writer.write(text)


def _writers() -> list[LogWriter]:
    return [one for one in logging.getLogger().handlers if isinstance(one, LogWriter)]


def configure(
    form: Literal["json", "console"], level: Level = "info", worker: int | None = None
) -> LogWriter:
    """Configure structlog and the standard library's logging alike, one line per record.

    form: "json" for machines, "console" for people.
    level: The least that is logged, except by the loggers in ALWAYS; default "info".
    worker: Which of several workers this process is, for each line; default None: it is alone.
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
    if level != "debug":  # uvicorn's information repeats what Cohort logs
        logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    return writer


def join_program() -> None:
    """Log by the standard library, as the program around it has that, which may be not at all.

    Where the program has configured structlog, that stays as it is.
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
    """An access log among the other lines of a writer, in their form."""

    def for_people(requests: Sequence[Answered]) -> str:
        lines = json_lines(requests).splitlines()
        return "".join(writer.render(orjson.loads(line)) + "\n" for line in lines)

    make = json_lines if form == "json" else for_people
    return AccessLog(lambda requests: writer.write_lines(requests, make))
