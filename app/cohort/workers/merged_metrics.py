"""Sums the metrics of several processes, as texts in Prometheus's format. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping

METRICS = "metrics"
"""The question for a worker's metrics. The parent keeps the answers, for when a worker ends."""

LINES_IN_A_STEP = 200

CUMULATIVE = frozenset({"counter", "histogram", "summary"})

SUMMED = frozenset(
    {
        "model_queue_requests",
        "model_inflight_requests",
        "model_memory_bytes",
        "model_sequences_running",
        "model_sequences_waiting",
        "model_kv_cache_used_bytes",
        "model_kv_cache_prefix_bytes",
        "model_kv_cache_total_bytes",
        "memory_held_bytes",
        "memory_budget_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "rollout_evidence_log10",  # 0 in workers that do not judge
        "rollout_evidence_requests",
        "rollout_evidence_bad_requests",
    }
)
"""Gauges that are summed over processes."""

LEAST = frozenset(
    {
        "server_ready",
        "model_serves",
        "model_batching",
        "rollouts_config_valid",
        "process_start_time_seconds",
    }
)
"""Gauges that are good only if all processes agree: the minimum; for others, the maximum."""

Steps = Generator[None, None, None]
"""Work in steps of less than a millisecond."""


class MetricFamily:
    """A metric: its description, its kind, and its samples by name and labels."""

    __slots__ = ("described", "kind", "merge", "samples")

    def __init__(self, described: str = "", kind: str = "untyped") -> None:
        self.described = described
        self.kind = kind
        self.samples: dict[str, float] = {}
        self.merge: Callable[[float, float], float] = max


class MergedMetrics:
    """A sum of metrics.

    families: By name, in the order in which they are written.
    """

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def add(self, text: str, *, cumulative_only: bool = False) -> Steps:
        """Add the text of a process. Lines that cannot be read are left out.

        cumulative_only: True if the process has ended: its counts stay, its gauges do not.
        """
        described = ""
        family = MetricFamily()
        for at, line in enumerate(text.split("\n")):
            if at % LINES_IN_A_STEP == 0:
                yield
            if line.startswith("# HELP "):
                described = line[7:].partition(" ")[2]
            elif line.startswith("# TYPE "):
                name, _, kind = line[7:].partition(" ")
                if cumulative_only and kind not in CUMULATIVE:
                    family = MetricFamily()  # discarded
                else:
                    family = self._family(name, described, kind)
            elif line and line[0] != "#":
                sample, _, value = line.rpartition(" ")
                try:
                    read = float(value)
                except ValueError:
                    continue
                samples = family.samples
                before = samples.get(sample)
                samples[sample] = read if before is None else family.merge(before, read)

    def _family(self, name: str, described: str, kind: str) -> MetricFamily:
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = MetricFamily(described, kind)
            if kind in CUMULATIVE or name in SUMMED:
                family.merge = float.__add__
            elif name in LEAST:
                family.merge = min
        return family

    def write(self) -> Generator[None, None, tuple[bytes, ...]]:
        """Return the text, in blocks."""
        blocks = []
        for name, family in self.families.items():
            lines = [f"# HELP {name} {family.described}", f"# TYPE {name} {family.kind}"]
            for sample, value in family.samples.items():
                lines.append(f"{sample} {_number(value)}")
                if len(lines) >= LINES_IN_A_STEP:
                    blocks.append(("\n".join(lines) + "\n").encode())
                    lines.clear()
                    yield
            if lines:
                blocks.append(("\n".join(lines) + "\n").encode())
        return tuple(blocks)


def _number(value: float) -> str:
    """Write a number as Prometheus's libraries do."""
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


def merge_metrics(
    living: Iterable[str], ended: str = ""
) -> Generator[None, None, tuple[bytes, ...]]:
    """Return the text of all processes, in blocks; `ended` has the counts of ended processes."""
    merged = MergedMetrics()
    for text in living:
        yield from merged.add(text)
    yield from merged.add(ended, cumulative_only=True)
    return (yield from merged.write())


class EndedCounts:
    """The counts of ended processes."""

    def __init__(self) -> None:
        self._merged = MergedMetrics()

    def add(self, text: str) -> None:
        """Add the last known metrics of a process."""
        for _ in self._merged.add(text, cumulative_only=True):
            pass

    def text(self) -> bytes:
        """Return the sum."""
        return _text(self._merged)


def write_parent_metrics(count: int, ready: int, restarts: Mapping[str, int]) -> bytes:
    """Return the parent's metrics: configured and ready workers, and restarts by cause."""
    merged = MergedMetrics()
    for name, described, kind, samples in (
        ("server_workers", "Configured number of worker processes.", "gauge", {"": count}),
        ("server_workers_ready", "Worker processes that are ready.", "gauge", {"": ready}),
        (
            "server_worker_restarts_total",
            "Worker processes that were replaced, by cause.",
            "counter",
            {f'{{cause="{cause}"}}': times for cause, times in restarts.items()},
        ),
    ):
        family = merged.families[name] = MetricFamily(described, kind)
        family.samples = {name + labels: float(value) for labels, value in samples.items()}
    return _text(merged)


def _text(merged: MergedMetrics) -> bytes:
    writing = merged.write()
    while True:
        try:
            next(writing)
        except StopIteration as end:
            return b"".join(end.value)
