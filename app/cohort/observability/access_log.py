"""The access log: one line for each answered request of any API.

The event loop keeps a tuple for each request. Every FLUSH_SECONDS, the tuples go to the thread that
writes the log, which formats them. A line contains nothing from a body, a query or a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from time import monotonic, time
from typing import NamedTuple, Protocol, TypeAlias

import orjson

from cohort.errors import printable

MAX_PATH = 200
"""Maximum characters of a path in a log line; request heads allow many more."""

FLUSH_SECONDS = 0.2
"""Maximum delay of a line. Lines are batched so that the thread wakes once for all of them."""

MAX_WAITING = 4000
"""Maximum number of queued lines; when it is reached, they are flushed at once."""

TRACE = '"trace_id":"%s",'
"""A trace id as a line has it; it has hexadecimal digits only."""

CALLER_LEFT = 499
"""The status of a request whose client disconnected before the response, as in nginx."""


class Answering(Protocol):
    """The lease that answered a request."""

    @property
    def model(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """The version, in digits."""

    @property
    def variant(self) -> str:
        """The rollout's variant; "" without a rollout."""


class Facts(NamedTuple):
    """The part of a log line that many requests share.

    method: The HTTP method, or the name of the gRPC method; "" if the request was not parsed.
    path: The path as sent; "" for gRPC.
    result: The HTTP status, or the name of the gRPC code.
    model, version: The model and version that answered; "" if no model answered.
    variant: The rollout's variant; "" without a rollout.
    caller: The caller's name; "" if callers need no key, or the caller was refused.
    """

    method: str
    path: str | bytes
    result: int | str
    model: str = ""
    version: str = ""
    variant: str = ""
    caller: str = ""

    @classmethod
    def of(
        cls,
        method: str,
        path: str,
        result: int | str,
        answering: Answering | None,
        caller: str,
    ) -> Facts:
        """Return the facts of a request; `answering` is None if no model answered it."""
        if answering is None:
            return cls(method, path, result, caller=caller)
        one = answering
        return cls(method, path, result, one.model, one.version, one.variant, caller)


Answered: TypeAlias = tuple[float, float, int, str | bytes, Facts, str]
"""A tuple of response time, arrival time, response bytes, request id, facts and trace id.

Times are seconds on the monotonic clock. The ids are empty if the request does not have them. This
is a plain tuple because one is made for each request.
"""

Write = Callable[[Sequence[Answered]], None]
"""A function that passes requests to the log, or drops and counts them; runs on the event loop."""


class AccessLog:
    """A buffer of answered requests, on the event loop.

    write: Receives the buffered requests.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: list[Answered] = []

    def add(self, answered: Answered) -> None:
        """Buffer a request; its line is written within FLUSH_SECONDS."""
        waiting = self._waiting
        if not waiting:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
        waiting.append(answered)
        if len(waiting) >= MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Pass the buffered requests to `write`."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(waiting)


def shown_path(path: str | bytes) -> str:
    """Return a path for a log line: printable, and without the query, which may contain a key."""
    text = path if isinstance(path, str) else path.decode("latin-1")
    return printable(text.partition("?")[0], MAX_PATH)


def json_lines(requests: Iterable[Answered]) -> str:
    """Return the lines of requests, each a JSON object with the same keys as other log lines."""
    to_wall_clock = time() - monotonic()
    lines = []
    stamp, about, stamp_of, about_of = "", "", -1, None
    for ended, began, size, request_id, facts, trace_id in requests:
        millisecond = int((ended + to_wall_clock) * 1000)
        if millisecond != stamp_of:
            stamp_of, stamp = millisecond, _stamp(millisecond)
        if facts is not about_of:
            about_of, about = facts, _about(facts)
        lines.append(
            f'{stamp}"ms":{(ended - began) * 1e3:.3f},"bytes":{size},'
            f"{_id(request_id) if request_id else ''}"
            f"{TRACE % trace_id if trace_id else ''}{about}\n"
        )
    return "".join(lines)


def _stamp(millisecond: int) -> str:
    second, rest = divmod(millisecond, 1000)
    return f'{{"timestamp":"{_second(second)}.{rest:03d}Z",'


@lru_cache(4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _id(request_id: str | bytes) -> str:
    text = request_id if isinstance(request_id, str) else request_id.decode()
    plain = '"' not in text and "\\" not in text  # ids have no control characters
    return f'"request_id":"{text}",' if plain else f'"request_id":{orjson.dumps(text).decode()},'


@lru_cache(2048)
def _about(facts: Facts) -> str:
    """Return the end of a line, which many requests share; at most half a kilobyte."""
    about = {
        "event": "request",
        "logger": "cohort.access",
        "level": "info",
        **facts._asdict(),
        "path": shown_path(facts.path),
    }
    result = about.pop("result")
    about["status" if isinstance(result, int) else "code"] = result
    return orjson.dumps({key: value for key, value in about.items() if value != ""}).decode()[1:]
