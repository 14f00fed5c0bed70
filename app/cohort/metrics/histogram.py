"""Histograms, and their bounds.

prometheus_client's histogram takes a lock and 2 to 7 times as long, on every request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from time import time

from prometheus_client.core import HistogramMetricFamily

from cohort.metrics.exposition import number

DURATION_BUCKETS = (
    *(50e-6, 100e-6, 250e-6, 500e-6, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
LOAD_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
REQUEST_BUCKETS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
RATIO_BUCKETS = (0.0, 0.1, 0.2, 0.5, 0.9)

Labels = tuple[str, ...]
VERSION_LABELS = ("model", "version")


class Histogram:
    """Counts by bucket. `bounds` are the inclusive upper ends, ascending.

    exemplars: By bucket, the text of the latest sampled request in it; None before the first.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "exemplars")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.exemplars: dict[int, str] | None = None

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def exemplify(self, value: float, trace_id: str, span_id: str) -> None:
        """Keep a counted value as the exemplar of its bucket.

        https://prometheus.io/docs/specs/om/open_metrics_spec/#exemplars
        """
        if self.exemplars is None:
            self.exemplars = {}
        labels = f'{{span_id="{span_id}",trace_id="{trace_id}"}}'
        self.exemplars[bisect_left(self._bounds, value)] = (
            f" # {labels} {number(value)} {time():.3f}"
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of values in each bucket; the last has values beyond all bounds."""
        return tuple(self._counts)

    @property
    def count(self) -> int:
        """The number of all values."""
        return sum(self._counts)

    @property
    def total(self) -> float:
        """The sum of all values."""
        return self._sum

    def add_to(self, family: HistogramMetricFamily, labels: Labels) -> None:
        """Add the cumulative counts to `family`, as Prometheus expects."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)


class HistogramText:
    """The lines of a histogram, which are kept until its counts change.

    name: The name of the family.
    labels: The labels as between braces, sorted by name; all names sort after `le`.
    """

    __slots__ = ("_histogram", "_labels", "_name", "_seen", "_text")

    def __init__(self, name: str, histogram: Histogram, labels: str) -> None:
        self._name = name
        self._histogram = histogram
        self._labels = labels
        self._seen: list[int] = []
        self._text = b""

    def text(self, *, openmetrics: bool = False) -> bytes:
        """Return the current lines of buckets, count and sum; b"" before the first value.

        openmetrics: True to add exemplars, which only this format has; default: False.
        """
        counts = self._histogram._counts
        if openmetrics and self._histogram.exemplars:
            return self._write(counts, self._histogram.exemplars)
        if counts != self._seen and any(counts):
            self._seen = counts.copy()
            self._text = self._write(counts, {})
        return self._text

    def _write(self, counts: Sequence[int], exemplars: Mapping[int, str]) -> bytes:
        name, labels = self._name, self._labels
        count = 0
        lines = []
        bounds = _bound_texts(self._histogram._bounds)
        for place, (bound, more) in enumerate(zip(bounds, counts, strict=True)):
            count += more
            exemplar = exemplars.get(place, "")
            lines.append(f'{name}_bucket{{le="{bound}",{labels}}} {count}.0{exemplar}\n')
        total = number(self._histogram.total)
        lines.append(f"{name}_count{{{labels}}} {count}.0\n{name}_sum{{{labels}}} {total}\n")
        return "".join(lines).encode()


@lru_cache
def _bound_texts(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(str(float(bound)) for bound in bounds), "+Inf")
