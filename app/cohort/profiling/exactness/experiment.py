"""Compare the bits of a row alone with those in runs of all sizes, at each place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from cohort.batching import (
    FIRST_AXIS,
    FilledRuns,
    Key,
    Outputs,
    RowsDoNotFollow,
    RunFeeds,
    Stacking,
    aligned,
)
from cohort.comparing import SAME_BITS, Pair, compare
from cohort.errors import CohortError, quoted
from cohort.profiling.exactness.kernels import RoundingKernel
from cohort.tensors import Array, Arrays, TensorSpec, by_name, held_bytes

ALL_SIZES = 32
"""Each number of rows up to this is tried; above it, only numbers around powers of two."""

SECONDS = 5.0
"""Time after which no further size is tried."""

MAX_HELD_BYTES = 64 << 20
"""Memory limit for the answers of requests alone; if they are large, fewer requests are tried."""

ALWAYS_TRIED = 3
"""Number of sizes that are tried regardless of their duration: two, three and the most rows."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of comparing the bits of requests alone and in shared runs.

    least_rows: The number of rows that a run must have to give the same bits; in smaller runs the
        last row is repeated. 1: any number; 0: no number of rows helps.
    reason: Why not any number of rows works; "" if it does.
    sizes: The numbers of rows that were tried.
    only_aligned: True if the bits are the same only for inputs aligned to a vector's size.
    """

    least_rows: int
    reason: str = ""
    sizes: tuple[int, ...] = ()
    only_aligned: bool = False


def try_bits(
    run: RunFeeds,
    requests: Sequence[Arrays],
    outputs: Sequence[TensorSpec],
    *,
    most: int,
    stacking: Stacking = FIRST_AXIS,
    known: Sequence[RoundingKernel] = (),
    one_size: bool = False,
    clock: Callable[[], float] = perf_counter,
) -> Exactness:
    """Compare the bits of each row alone, run as two, and in runs of up to `most` rows.

    run: Runs the model.
    requests: Requests that it accepts, some of one row.
    stacking: Joins and splits the requests of a run; default: along axis 0.
    known: Its kernels that are known to round a row depending on its run, the worst first.
    one_size: True to also try runs that all have `most` rows, for devices that choose kernels by
        size; default False.
    clock: Counts the seconds of runs.

    Raises OutOfTime if `run` does.
    """
    aside = next((str(one) for one in known if one.by == "address"), "")
    counted = [one for one in known if one.by != "address"]
    ways = sorted({1, 2, most if one_size else 2})
    trial = _Trial(run, outputs, stacking, ways)
    groups = [*filter(None, map(trial.fitting, _single_rows(requests, stacking)))]
    tried: list[int] = []
    until = clock() + SECONDS
    for size in _sizes_to_try(most) if groups else ():
        if len(tried) >= ALWAYS_TRIED and (clock() > until or len(trial.differences) == len(ways)):
            break
        for group in groups:
            trial.try_size(group, size)
        tried.append(size)
    by_place = any(one.by == "place" for one in counted)
    ruled_out = set(ways) if by_place or not groups else {1} if counted else set()
    left = [way for way in ways if way not in trial.differences and way not in ruled_out]
    why = ["all of its requests failed"] if not groups else []
    why += [*map(str, counted[:1]), *filter(None, [trial.differences.get(1, "")])]
    least = min(left, default=0)
    reason = "" if least == 1 else "; ".join(why)
    return Exactness(least, reason or aside, tuple(sorted(tried)), only_aligned=bool(aside))


class _Trial:
    """Runs rows together and compares their bits with those of each row alone.

    ways: The minimum numbers of rows of a run to try; smaller runs repeat their last row.

    differences: The ways that do not give the same bits, each with the difference found.
    """

    def __init__(
        self, run: RunFeeds, outputs: Sequence[TensorSpec], stacking: Stacking, ways: Sequence[int]
    ) -> None:
        def run_aligned(feeds: Arrays, _: Any = None) -> Outputs:
            return run(aligned(feeds))

        self.differences: dict[int, str] = {}
        self._outputs, self._stacking = outputs, stacking
        self._runs = {way: FilledRuns(run_aligned, way, stacking).run for way in ways}
        self._alone: dict[tuple[int, int], list[Outputs]] = {}

    def try_size(self, group: Sequence[Arrays], size: int) -> None:
        """Try each way in a run of `size` rows, which repeat the rows of `group`."""
        places = [(place + size) % len(group) for place in range(size)]
        joined = self._stacking.join([group[place] for place in places])
        parts: list[Outputs] | None = None
        for way, run in self._runs.items():
            if way in self.differences:
                continue
            try:
                alone = self._answers(group, way)
                if parts is None or way > size:
                    together = run(joined.feeds, None)
                    parts = self._stacking.split(together, [1] * size, joined)
            except RowsDoNotFollow as error:
                self.differences[way] = str(error)
                continue
            except CohortError as error:
                self.differences[way] = f"a run of {size} rows failed: {error}"
                continue
            pairs = [
                Pair(by_name(self._outputs, alone[place]), by_name(self._outputs, part))
                for place, part in zip(places, parts, strict=True)
            ]
            if found := _largest_difference(pairs):
                self.differences[way] = f"{found} in a run of {size} rows"

    def _answers(self, group: Sequence[Arrays], way: int) -> list[Outputs]:
        key = id(group), way
        if key not in self._alone:
            self._alone[key] = [self._runs[way](request, None) for request in group]
        return self._alone[key]

    def fitting(self, group: Sequence[Arrays]) -> Sequence[Arrays]:
        """Return the requests whose answers fit in memory: at least one, or none if it fails."""
        try:
            answer = self._runs[1](group[0], None)
        except CohortError:
            return []
        size = len(self._runs) * sum(map(held_bytes, answer))
        return group[: max(1, MAX_HELD_BYTES // max(size, 1))]


def _largest_difference(pairs: Sequence[Pair]) -> str:
    """Describe the output whose bits differ most; return "" if all are equal."""
    unlike = (pair for pair in pairs if not same_bytes(pair))
    found = [one for pair in unlike for one in compare([pair], SAME_BITS)[0] if one.disagrees]
    if not found:
        return ""
    worst = max(found, key=lambda one: one.largest or 0.0)
    by = "" if worst.largest is None else f" by up to {worst.largest:.2g}"
    return f"here output {quoted(worst.output)} of a row differs{by}"


def same_bytes(pair: Pair) -> bool:
    """Return True if the outputs have the same bytes; faster than `compare`, without copies."""
    return all(
        (other := pair.got.get(name)) is not None
        and one.shape == other.shape
        and one.dtype == other.dtype
        and np.array_equal(_whole_numbers(one), _whole_numbers(other))
        for name, one in pair.expected.items()
    )


def _whole_numbers(array: Array) -> Array:
    size = array.dtype.itemsize
    is_short = not array.dtype.hasobject and size in (1, 2, 4, 8)
    return np.ascontiguousarray(array).view(f"u{size}") if is_short else array


def _single_rows(requests: Sequence[Arrays], stacking: Stacking) -> list[list[Arrays]]:
    """Return the requests of one row, grouped by the key that a shared run requires."""
    groups: defaultdict[Key, list[Arrays]] = defaultdict(list)
    for request in requests:
        rows, key = stacking.rows_and_key(request)
        if key is not None and rows == 1:
            groups[key].append(request)
    return list(groups.values())


def _sizes_to_try(most: int) -> Iterator[int]:
    """Yield the numbers of rows to try, each once, the smallest and the largest first."""
    sizes = [2, 3, most, most - 1, *range(4, ALL_SIZES + 1)]
    power = 2 * ALL_SIZES
    while power <= most:
        sizes += [power - 1, power, power + 1]
        power *= 2
    yield from (size for size in dict.fromkeys(sizes) if 2 <= size <= most)
