"""The text that Prometheus reads, from families whose lines may come in parts.

prometheus_client writes all families in one call, 7 µs a line, every time. Here a caller may keep
lines as bytes and add them again. The lines equal prometheus_client's. Both text formats have the
same lines; only the heads of families differ.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

TEXT_AT_ONCE = 128 * 1024
"""Bytes that are joined and sent at once, which takes 0.1 ms."""

T = TypeVar("T")


class FamilyHead(NamedTuple):
    """A family's name, without a counter's `_total`, its type and its help."""

    name: str
    kind: str
    help_text: str

    def text(self, *, openmetrics: bool) -> bytes:
        """Return the lines above the family's samples."""
        total = "_total" if self.kind == "counter" and not openmetrics else ""
        described = self.help_text.replace("\\", r"\\").replace("\n", r"\n")
        if openmetrics:
            described = described.replace('"', r"\"")
        name = self.name + total
        return f"# HELP {name} {described}\n# TYPE {name} {self.kind}\n".encode()


class Exposition:
    """Families in the order of their first part; parts of one family are joined."""

    def __init__(self) -> None:
        self._families: dict[FamilyHead, list[bytes]] = {}

    def lines(self, head: FamilyHead) -> list[bytes]:
        """Return the list of a family's lines, to append to; an element may have several lines."""
        return self._families.setdefault(head, [])

    def add(self, metric: Metric) -> None:
        """Add a family of prometheus_client, or a part of it."""
        head = FamilyHead(metric.name, metric.type, metric.documentation)
        self.lines(head).extend(map(_line, metric.samples))

    def blocks(self, *, openmetrics: bool) -> Iterator[bytes]:
        """Yield the text in blocks of about TEXT_AT_ONCE."""
        block: list[bytes] = []
        size = 0
        for head, lines in self._families.items():
            block.append(head.text(openmetrics=openmetrics))
            for line in lines:
                block.append(line)
                size += len(line)
                if size >= TEXT_AT_ONCE:
                    yield b"".join(block)
                    block, size = [], 0
        if openmetrics:
            block.append(b"# EOF\n")
        yield b"".join(block)


def negotiate(accept: str) -> str:
    """Return the content type that an `accept` header prefers.

    The escaping `dots` is replaced, because it would double each `_` of a name; other escapings do
    not change Cohort's names.
    """
    return choose_encoder(accept)[1].replace("escaping=dots", "escaping=underscores")


def label_text(name: str, value: str) -> str:
    """Write a label, as between braces."""
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'


def number(value: float) -> str:
    """Write a number as Go does."""
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _line(sample: Sample) -> bytes:
    labels = ",".join(label_text(*one) for one in sorted(sample.labels.items()))
    braces = f"{{{labels}}}" if labels else ""
    return f"{sample.name}{braces} {number(sample.value)}\n".encode()


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield `items` in parts of at most `size`; one empty part if there are no items."""
    for start in range(0, max(len(items), 1), size):
        yield items[start : start + size]
