"""What is counted of each version, in plain numbers, for who looks at it each second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cohort.metrics.histogram import DURATION_BUCKETS, SIZE_BUCKETS, Labels
from cohort.metrics.version_metrics import VersionMetrics


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """The counts of a version, since its process started or between two moments.

    codes: Responses by their codes; "OK" is a success.
    variants: Responses by the rollout's variant; "" is none.
    durations: Responses by how long they took, to DURATION_BUCKETS and beyond.
    rows: Runs by their rows, to SIZE_BUCKETS and beyond.
    """

    codes: Mapping[str, int] = field(default_factory=dict)
    variants: Mapping[str, int] = field(default_factory=dict)
    durations: tuple[int, ...] = (0,) * (len(DURATION_BUCKETS) + 1)
    rows: tuple[int, ...] = (0,) * (len(SIZE_BUCKETS) + 1)

    @property
    def requests(self) -> int:
        """All responses."""
        return sum(self.codes.values())

    def plus(self, other: Self, sign: int = 1) -> VersionCounts:
        """The counts of both; with the sign -1, what came since `other`."""
        return VersionCounts(
            _plus(self.codes, other.codes, sign),
            _plus(self.variants, other.variants, sign),
            _plus_all(self.durations, other.durations, sign),
            _plus_all(self.rows, other.rows, sign),
        )

    def continues(self, earlier: Self) -> bool:
        """Whether the same process can have counted it after `earlier`: nothing became less."""
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
        """The same as JSON has it; nothing is copied."""
        return {
            "codes": self.codes,
            "variants": self.variants,
            "durations": self.durations,
            "rows": self.rows,
        }

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Self:
        """What `plain` gave."""
        return cls(said["codes"], said["variants"], tuple(said["durations"]), tuple(said["rows"]))


def _plus(one: Mapping[str, int], other: Mapping[str, int], sign: int) -> dict[str, int]:
    names = {**one, **other}
    sums = {name: one.get(name, 0) + sign * other.get(name, 0) for name in names}
    return {name: count for name, count in sums.items() if count}


def _plus_all(one: tuple[int, ...], other: tuple[int, ...], sign: int) -> tuple[int, ...]:
    return tuple(count + sign * more for count, more in zip(one, other, strict=True))


def count_versions(
    versions: Iterable[tuple[Labels, VersionMetrics]],
) -> Iterator[tuple[Labels, VersionCounts]]:
    """The counts of versions that were asked for anything."""
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
