"""Counts of each version as plain numbers, for live views that read them every second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cohort.metrics.histogram import DURATION_BUCKETS, SIZE_BUCKETS, Labels
from cohort.metrics.version_metrics import VersionMetrics


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """The counts of a version, since the start of its process or between two times.

    codes: Responses by code; "OK" is a success.
    variants: Responses by the rollout's variant; "" without a rollout.
    durations: Responses by duration, in DURATION_BUCKETS and beyond.
    rows: Runs by number of rows, in SIZE_BUCKETS and beyond.
    """

    codes: Mapping[str, int] = field(default_factory=dict)
    variants: Mapping[str, int] = field(default_factory=dict)
    durations: tuple[int, ...] = (0,) * (len(DURATION_BUCKETS) + 1)
    rows: tuple[int, ...] = (0,) * (len(SIZE_BUCKETS) + 1)

    @property
    def requests(self) -> int:
        """The number of all responses."""
        return sum(self.codes.values())

    def plus(self, other: Self, sign: int = 1) -> VersionCounts:
        """Add the counts of `other`; with the sign -1, subtract them."""
        return VersionCounts(
            _plus(self.codes, other.codes, sign),
            _plus(self.variants, other.variants, sign),
            _plus_all(self.durations, other.durations, sign),
            _plus_all(self.rows, other.rows, sign),
        )

    def continues(self, earlier: Self) -> bool:
        """Return True if no count is less than in `earlier`, so that both may be one process's."""
        now = (self.codes, self.variants)
        then = (earlier.codes, earlier.variants)
        return all(
            mine.get(name, 0) >= count
            for mine, theirs in zip(now, then, strict=True)
            for name, count in theirs.items()
        ) and all(
            count >= before
            for count, before in zip(
                self.durations + self.rows, earlier.durations + earlier.rows, strict=True
            )
        )

    def plain(self) -> dict[str, Any]:
        """Return the counts for JSON, without copies."""
        return {
            "codes": self.codes,
            "variants": self.variants,
            "durations": self.durations,
            "rows": self.rows,
        }

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Read the result of `plain`."""
        durations, rows = tuple(plain["durations"]), tuple(plain["rows"])
        return cls(plain["codes"], plain["variants"], durations, rows)


def _plus(one: Mapping[str, int], other: Mapping[str, int], sign: int) -> dict[str, int]:
    names = {**one, **other}
    sums = {name: one.get(name, 0) + sign * other.get(name, 0) for name in names}
    return {name: count for name, count in sums.items() if count}


def _plus_all(one: tuple[int, ...], other: tuple[int, ...], sign: int) -> tuple[int, ...]:
    return tuple(count + sign * more for count, more in zip(one, other, strict=True))


def count_versions(
    versions: Iterable[tuple[Labels, VersionMetrics]],
) -> Iterator[tuple[Labels, VersionCounts]]:
    """Yield the counts of all versions that got requests."""
    for labels, counted in versions:
        if not counted.outcomes:
            continue
        codes: dict[str, int] = {}
        variants: dict[str, int] = {}
        for (variant, code), count in counted.outcomes.items():
            codes[code] = codes.get(code, 0) + count
            variants[variant] = variants.get(variant, 0) + count
        durations = [one.counts for one in counted.durations.values()]
        yield (
            labels,
            VersionCounts(
                codes, variants, tuple(map(sum, zip(*durations, strict=True))), counted.rows.counts
            ),
        )
