"""Metrics in expressions, metrics of a server, and metrics in the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.e2e.processes import ROOT

NOT_METRICS = frozenset({"and", "or", "unless", "offset", "bool", "inf", "nan"})
OF_PROMETHEUS = frozenset({"up", "ALERTS"})
"""Metrics that Prometheus makes itself."""

OF_BALANCERS = frozenset({"haproxy_frontend_http_responses_total", "nginx_http_responses_total"})
"""Metrics of the balancers in front of the replicas."""

SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
}


def metrics_in(expression: str) -> set[str]:
    """The names of metrics and of recording rules that `expression` reads."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_(left|right))\s*\([^)]*\)", " ", text)
    names = re.findall(r"(?<![\w:.$])([A-Za-z_:][\w:]*)(?!\s*\(|[\w:])", text)
    return {name for name in names if name.lower() not in NOT_METRICS}


def selectors_in(expression: str) -> list[str]:
    """The same with the labels that it asks for, as often as it does."""
    return [
        selector
        for name in sorted(metrics_in(expression))
        for selector in re.findall(rf"(?<![\w:]){name}(?![\w:])(?:\{{[^}}]*\}})?", expression)
    ]


def metrics_of(exposition: str) -> set[str]:
    """The names of the samples that a text exposition has or will have."""
    return {
        name.removesuffix("_total") + suffix if kind == "counter" else name + suffix
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE)
        for suffix in SUFFIXES[kind]
    }


class Documented(NamedTuple):
    """A row of the table of metrics in the reference."""

    name: str
    kind: str
    labels: frozenset[str]


def documented_metrics() -> Iterator[Documented]:
    """The rows of the table of metrics."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    table = page.partition("| metric | kind |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        names, kind, labels, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`([^`]+)`", names):
            yield Documented(name, kind, frozenset(filter(None, labels.split(", "))))
