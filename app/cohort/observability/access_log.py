"""The access log: one line for each request that was answered, whatever its API.

The event loop keeps a tuple for each request. Every FLUSH_SECONDS they go to the thread that writes
the log, and become text there. A line holds nothing of a body, a query or a key.
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
"""Characters of a path that a log line shows; headers have many more."""

FLUSH_SECONDS = 0.2
"""How long a line waits for others. The thread is woken once for all of them."""

MAX_WAITING = 4000
"""Lines that wait for others at most; then they go at once."""

CALLER_LEFT = 499
"""The status of a request that nobody waited for any more, as nginx has it."""


class Answering(Protocol):
    """What answered a request: a lease."""

    @property
    def model(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """The version, in digits."""

    @property
    def variant(self) -> str:
        """The rollout's variant; "": none."""


class Facts(NamedTuple):
    """What many requests have in common, and their lines share.

    method: HTTP's, or the name of the gRPC method; "": the request could not be parsed.
    path: As it was sent; "": gRPC.
    result: The status of HTTP, or the name of the code of gRPC.
    model, version: What answered; "": nothing did.
    variant: The rollout's; "": none.
    caller: The name of the caller; "": callers need no key, or it was refused.
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
        """The facts of a request; `answering` is None where nothing answered it."""
        if answering is None:
            return cls(method, path, result, caller=caller)
        one = answering
        return cls(method, path, result, one.model, one.version, one.variant, caller)


Answered: TypeAlias = tuple[float, float, int, str | bytes, Facts]
"""When the answer was written and when the request arrived, in seconds on the monotonic clock; the
answer's bytes; the request's id, empty where it has none; and the facts.

A plain tuple, because one is made per request.
"""

Write = Callable[[Sequence[Answered]], None]
"""Has the lines of requests written, or drops and counts them; from the event loop."""


class AccessLog:
    """Gathers answered requests, on the event loop.

    write: Takes them.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: list[Answered] = []

    def add(self, answered: Answered) -> None:
        """Have the line of a request written soon."""
        waiting = self._waiting
        if not waiting:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
        waiting.append(answered)
        if len(waiting) >= MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Hand on what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(waiting)


def shown_path(path: str | bytes) -> str:
    """A path as a log line shows it: without its query, which may hold a key, and on one line."""
    text = path if isinstance(path, str) else path.decode("latin-1")
    return printable(text.partition("?")[0], MAX_PATH)


def json_lines(requests: Iterable[Answered]) -> str:
    """The lines of requests, each a JSON object with the keys of all other lines."""
    to_wall_clock = time() - monotonic()
    lines = []
    stamp, about, stamp_of, about_of = "", "", -1, None
    for ended, began, size, request_id, facts in requests:
        millisecond = int((ended + to_wall_clock) * 1000)
        if millisecond != stamp_of:
            stamp_of, stamp = millisecond, _stamp(millisecond)
        if facts is not about_of:
            about_of, about = facts, _about(facts)
        lines.append(
            f'{stamp}"ms":{(ended - began) * 1e3:.3f},"bytes":{size},'
            f"{_id(request_id) if request_id else ''}{about}\n"
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
    plain = '"' not in text and "\\" not in text  # no id has controls
    return f'"request_id":"{text}",' if plain else f'"request_id":{orjson.dumps(text).decode()},'


@lru_cache(2048)
def _about(facts: Facts) -> str:
    """The end of a line, which is the same for many; half a kilobyte at most."""
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
