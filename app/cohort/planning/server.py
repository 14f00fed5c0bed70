"""Read the runs of a replica from the JSON that `cohort profile MODEL --json` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.errors import quoted
from cohort.profiling import ConcurrentRuns, best_concurrency

MAX_PROFILE_BYTES = 1 << 24
MAX_ROWS = 1 << 20
MAX_AT_ONCE = 4096


class UnreadableProfile(Exception):
    """A file is not a profile; its text names the file and the problem."""


@dataclass(frozen=True, slots=True)
class ReplicaRuns:
    """The runs of a replica.

    model: The model's name; empty if it is not in the profile.
    at_once: The runs at a time.
    seconds: The time of a run for one request.
    seconds_by_requests: The time of a run that several requests share, by their number; only {1:
        seconds} if they run one by one.
    """

    model: str
    at_once: int
    seconds: float
    seconds_by_requests: Mapping[int, float]

    @property
    def shares_runs(self) -> bool:
        """True if requests can share a run."""
        return max(self.seconds_by_requests) > 1


def read_profile(path: Path, rows: int = 1) -> ReplicaRuns:
    """Read a profile, for requests of this many rows. Raises UnreadableProfile with the reason.

    A replica has the concurrent runs that are best for the smallest measured size. Without
    measured concurrent runs, it has one run at a time.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_PROFILE_BYTES + 1)
    except OSError as error:
        raise UnreadableProfile(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_PROFILE_BYTES:
        raise UnreadableProfile(
            f"{path} has more than 16 MiB; cohort profile MODEL --json prints a few KB"
        )
    try:
        found = json.loads(text)
        if "language_model" in found:
            raise UnreadableProfile(
                f"{path} describes a language model, which has no profile of requests: measure "
                "chats on a replica with cohort bench --chat"
            )
        return _runs(found, rows)
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise UnreadableProfile(
            f"{path} is not the output of cohort profile MODEL --json: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no key {error}"
    if isinstance(error, TypeError | AttributeError):
        return "a value has another type than in a profile"
    return str(error)


def _runs(found: Mapping[str, Any], rows: int) -> ReplicaRuns:
    profile = found["profile"]
    by_rows = {int(size): _positive(taken) for size, taken in profile["seconds_by_rows"].items()}
    if not by_rows:
        raise ValueError("seconds_by_rows is empty, so no run was measured")
    if min(by_rows) < 1:
        raise ValueError("seconds_by_rows has a size below 1")
    if max(by_rows) > MAX_ROWS:
        raise ValueError(f"seconds_by_rows has a size above {MAX_ROWS}")
    if rows > max(by_rows):
        raise ValueError(f"its largest run has {max(by_rows)} rows, and a request has {rows}")
    at_once, slower = _concurrency(profile.get("concurrency") or [], by_rows)
    most = 1 if found.get("batching_off") else int(profile.get("chosen_rows") or 1)
    shared = {size // rows: taken for size, taken in by_rows.items() if rows < size <= most}
    alone = by_rows[min(size for size in by_rows if size >= rows)]
    by_requests = {count: taken * slower for count, taken in ({**shared, 1: alone}).items()}
    return ReplicaRuns(str(found.get("model") or ""), at_once, by_requests[1], by_requests)


def _positive(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]  # what is not a number raises a TypeError
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{quoted(str(value))} is not a time above 0 seconds")
    return seconds


def _concurrency(
    found: Sequence[Mapping[str, Any]], by_rows: Mapping[int, float]
) -> tuple[int, float]:
    """Return the best number of concurrent runs, and how much slower each is than a lone one."""
    fewest = min((int(one["rows"]) for one in found), default=0)
    runs = tuple(
        ConcurrentRuns(
            int(one["threads"]),
            int(one["rows"]),
            int(one["at_once"]),
            _positive(one["seconds"]),
            _positive(one["rows_per_second"]),
        )
        for one in found
        if int(one["rows"]) == fewest
    )
    if not runs:
        return 1, 1.0
    if any(not 1 <= one.at_once <= MAX_AT_ONCE for one in runs):
        raise ValueError(f"concurrency has an at_once that is not 1 to {MAX_AT_ONCE}")
    best = best_concurrency(runs) or runs[0]
    lone = [one.seconds for one in runs if (one.threads, one.at_once) == (best.threads, 1)]
    alone = lone[0] if lone else by_rows.get(fewest, best.seconds)
    return best.at_once, max(1.0, best.seconds / alone)
