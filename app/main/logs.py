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
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

LONGEST_QUEUE = 10_000
"""Lines that wait to be written at most; further ones are dropped and counted."""

LINES_AT_ONCE = 64

CLOSING_SECONDS = 2.0
"""How long the process waits at its end until all lines are written, at most."""

Render = Callable[[EventDict], str]

_PREPARE: tuple[Processor, ...] = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    # A traceback becomes text at once: it would hold its frames, and what callers sent in them.
    structlog.processors.format_exc_info,
)


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
        self._render = render
        self._limit = limit
        # Its `put` is atomic: a signal's handler may log while the main thread does.
        self._queue: SimpleQueue[EventDict | str | threading.Event] = SimpleQueue()
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

    def flush_within(self, seconds: float) -> bool:
        """Wait until all that was queued is written, but not longer; say whether it is."""
        written = threading.Event()
        self._queue.put(written)
        return written.wait(seconds)

    def _work(self) -> None:
        while True:
            waiting = [self._queue.get()]
            while len(waiting) < LINES_AT_ONCE:
                try:
                    waiting.append(self._queue.get_nowait())
                except Empty:
                    break
            self._write([one for one in waiting if not isinstance(one, threading.Event)])
            if missing := self.dropped - self._reported:
                self._reported += missing
                self._write([_notice(missing)])
            for one in waiting:
                if isinstance(one, threading.Event):
                    one.set()

    def _write(self, events: Sequence[EventDict | str]) -> None:
        lines = []
        for event in events:
            try:
                lines.append(event if isinstance(event, str) else self._render(event) + "\n")
            except Exception as error:  # noqa: BLE001 - a value's own repr may raise anything
                lines.append(self._render(_notice(1, f"{type(error).__name__}: {error}")) + "\n")
        try:
            _write_all(self._stream, "".join(lines))
        except (OSError, ValueError):  # nobody will ever read it
            self.dropped += len(lines)
            self._reported += len(lines)


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
def configured(form: Literal["json", "console"]) -> Iterator[LogWriter]:
    """Log by `configure`, and write what is queued at the end, for CLOSING_SECONDS at most."""
    writer = configure(form)
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


def configure(form: Literal["json", "console"]) -> LogWriter:
    """Configure structlog and the standard library's logging alike, one line per record.

    form: "json" for machines, "console" for people.
    """
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )

    def render(event: EventDict) -> str:
        return str(renderer(None, "", event))

    structlog.configure(
        processors=[*_PREPARE, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    writer = LogWriter(sys.stderr, render)
    root = logging.getLogger()
    root.handlers = [writer]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return writer
