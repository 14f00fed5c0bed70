"""The content of a kept profile's file, and its validation.

Such a file may contain anything: other programs, releases and machines write to the same folder.
Its numbers decide the size of batches and which runs are made on the event loop. So each number
must be one that a measurement on this machine could have given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import isfinite
from typing import Any

from pydantic import TypeAdapter, ValidationError, with_config

from cohort.batching import BatchPolicy
from cohort.errors import shortened
from cohort.profiling.concurrency import ConcurrentRuns
from cohort.profiling.exactness import Exactness
from cohort.profiling.measurement import MIN_SECONDS
from cohort.profiling.threads import ONE, Threads

MAX_SECONDS = 3600.0
"""Upper bound of a measured run."""

GAIN_OF_ROWS = 4.0
"""Maximum speedup of a run of more rows over one of fewer; it is above 1 on some GPUs."""

MAX_ELEMENTS = 1 << 40
"""Maximum number of elements of a row, in all inputs."""

MAX_THREADS = 4096

MAX_CHARACTERS = 10_000
"""Maximum length of a reason."""


@with_config({"extra": "forbid", "allow_inf_nan": False})
@dataclass(frozen=True, slots=True)
class KeptProfile:
    """The content of a kept profile's file, without its format and key.

    measured: The time of the measurement, in UTC and ISO 8601.
    seconds: The duration of a run by its number of rows.
    max_batch_size: The batch size that was chosen, in rows.
    reason: Why requests are not batched; empty if they are.
    padding_off: Why requests are not padded; empty if they are, or need not be.
    row_elements: The elements of a profiled row; default 0: all rows have the same number.
    threads: The threads of exclusive runs; default one.
    concurrency: The throughput of concurrent runs; default none: not measured.
    change_seconds: The extra time of a run after one with another number of rows; default 0.
    exactness: The result of comparing bits alone and in shared runs; default None: not tried.
    """

    measured: str
    seconds: dict[int, float]
    max_batch_size: int
    reason: str
    padding_off: str
    row_elements: int = 0
    threads: Threads = ONE
    concurrency: tuple[ConcurrentRuns, ...] = ()
    change_seconds: float = 0.0
    exactness: Exactness | None = None


_KEPT = TypeAdapter(KeptProfile)


def read_kept(content: Mapping[str, Any], policy: BatchPolicy) -> KeptProfile:
    """Validate the content of a profile's file, without its format and key.

    policy: The batch policy of the model's config, which the profile was measured for.

    Raises ValueError with the problem if the content is invalid.
    """
    try:
        kept = _KEPT.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{place}: {first['msg']}, got {shortened(repr(first['input']))}"
        ) from None
    kept = replace(kept, seconds=dict(sorted(kept.seconds.items())))
    if problem := next(_problems(kept, policy), ""):
        raise ValueError(problem)
    return kept


def _problems(kept: KeptProfile, policy: BatchPolicy) -> Iterator[str]:
    """Yield the values that no measurement for `policy` could have given."""
    seconds, chosen, largest = kept.seconds, kept.max_batch_size, policy.max_batch_size
    if 1 not in seconds or not all(1 <= rows <= largest for rows in seconds):
        sizes = shortened(str(list(seconds)))
        yield f"seconds: must be for 1 row and up to {largest}, got {sizes}"
    for rows, taken in seconds.items():
        if not MIN_SECONDS <= taken <= MAX_SECONDS:
            yield f"seconds: a run of {rows} rows cannot take {taken:g} s"
    for (fewer, before), (more, after) in pairwise(seconds.items()):
        if after * GAIN_OF_ROWS < before:
            yield f"seconds: {more} rows cannot take {after:g} s where {fewer} take {before:g} s"
    if chosen not in seconds or (chosen > 1) is bool(kept.reason):
        yield f"max_batch_size: {chosen} was not measured, or does not go with the reason"
    if max(len(kept.reason), len(kept.padding_off)) > MAX_CHARACTERS:
        yield f"reason, padding_off: must be at most {MAX_CHARACTERS} characters"
    if not 0 <= kept.row_elements <= MAX_ELEMENTS:
        yield f"row_elements: must be from 0 to {MAX_ELEMENTS}, got {kept.row_elements}"
    if not 0 <= kept.change_seconds <= MAX_SECONDS:
        yield f"change_seconds: must be from 0 to {MAX_SECONDS:g}, got {kept.change_seconds:g}"
    if kept.change_seconds and (kept.row_elements or policy.trust):
        yield "change_seconds: is not measured where rows differ in length or influence each other"
    threads = kept.threads
    if not 1 <= threads.tried <= MAX_THREADS or threads.chosen not in (1, threads.tried):
        yield f"threads: {threads.chosen} of {threads.tried} cannot be"
    if threads.gain <= 0 or not isfinite(threads.gain):
        yield f"threads.gain: must be > 0, got {threads.gain}"
    for one in kept.concurrency:
        numbers = (one.threads, one.rows, one.at_once, one.seconds, one.rows_per_second)
        if not all(isfinite(number) and number >= 0 for number in numbers):
            yield f"concurrency: {numbers} cannot be"
    if kept.exactness is not None:
        yield from _exactness_problems(kept.exactness, largest)
    try:
        datetime.fromisoformat(kept.measured)
    except ValueError:
        yield f"measured: must be a date, got {shortened(kept.measured)}"


def _exactness_problems(found: Exactness, largest: int) -> Iterator[str]:
    if not 0 <= found.least_rows <= largest:
        yield f"exactness.least_rows: must be from 0 to {largest}, got {found.least_rows}"
    if (found.least_rows != 1 or found.only_aligned) is not bool(found.reason):
        yield "exactness: the reason does not go with the rest"
    if len(found.reason) > MAX_CHARACTERS:
        yield f"exactness.reason: must be at most {MAX_CHARACTERS} characters"
    if not all(1 < size <= largest for size in found.sizes):
        yield f"exactness.sizes: must be from 2 to {largest}"
