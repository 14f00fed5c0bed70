"""Read a server's metrics as the counts that its live view uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from cohort.metrics import DURATION_BUCKETS, SIZE_BUCKETS, VersionCounts
from cohort.operating.live import VersionKey

REQUESTS = "model_inference"
DURATIONS, BATCH_ROWS = "model_inference_duration_seconds", "model_batch_rows"
QUEUED = "model_queue_requests"

SHORTENED = (REQUESTS, DURATIONS, BATCH_ROWS, QUEUED)


class NotCohort(Exception):
    """Response that has no metrics of a Cohort server."""


@dataclass(frozen=True, slots=True, eq=False)
class Scrape:
    """Counts read from a server at one time.

    at: Seconds on the monotonic clock.
    versions: Counts of each version since the server started.
    queued: Requests in queues.
    """

    at: float
    versions: Mapping[VersionKey, VersionCounts]
    queued: int


@dataclass
class _Counted:
    codes: dict[str, int] = field(default_factory=dict)
    variants: dict[str, int] = field(default_factory=dict)
    durations: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS) + 1))
    rows: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BUCKETS) + 1))


def read_scrape(text: str, at: float) -> Scrape:
    """Parse the text of /metrics. Raises NotCohort."""
    found: dict[VersionKey, _Counted] = {}
    queued = 0
    seen = False
    try:
        for family in text_string_to_metric_families("\n".join(_wanted(text))):
            seen = True
            for sample in family.samples:
                key = sample.labels.get("model", ""), sample.labels.get("version", "")
                count = int(sample.value)
                if family.name == QUEUED:
                    queued += count
                    continue
                counted = found.setdefault(key, _Counted())
                if sample.name == f"{REQUESTS}_total":
                    _add(counted.codes, sample.labels["code"], count)
                    _add(counted.variants, sample.labels.get("variant", ""), count)
                elif sample.name == f"{DURATIONS}_bucket":
                    _place(counted.durations, DURATION_BUCKETS, sample.labels["le"], count)
                elif sample.name == f"{BATCH_ROWS}_bucket":
                    _place(counted.rows, SIZE_BUCKETS, sample.labels["le"], count)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise NotCohort(f"its metrics cannot be read: {error}") from None
    if not seen:
        raise NotCohort("its metrics do not include Cohort's")
    return Scrape(
        at,
        {
            key: VersionCounts(one.codes, one.variants, _apart(one.durations), _apart(one.rows))
            for key, one in found.items()
        },
        queued,
    )


def _wanted(text: str) -> Iterable[str]:
    """Yield the lines that are used here. A server with 1,000 models has 100,000 other lines."""
    for line in text.splitlines():
        name = line.removeprefix("# TYPE ")
        if not line.startswith("# HELP") and name.startswith(SHORTENED):
            yield line


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def _place(counts: list[int], bounds: tuple[float, ...], bound: str, count: int) -> None:
    place = len(bounds) if bound == "+Inf" else bounds.index(float(bound))
    counts[place] += count  # summed over variants


def _apart(cumulative: list[int]) -> tuple[int, ...]:
    """Return the counts of single buckets from cumulative ones."""
    return tuple(
        count - before for before, count in zip([0, *cumulative], cumulative, strict=False)
    )


def quantile(share: float, counts: tuple[int, ...], bounds: tuple[float, ...]) -> float | None:
    """Estimate a quantile from bucket counts by linear interpolation, as Prometheus does."""
    rank, below = share * sum(counts), 0
    if not rank:
        return None
    for place, bound in enumerate(bounds):
        within = counts[place]
        if within and below + within >= rank:
            start = bounds[place - 1] if place else 0.0
            return start + (bound - start) * (rank - below) / within
        below += within
    return bounds[-1]
