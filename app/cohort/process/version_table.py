"""Tables of versions for people: unbroken columns, and footnotes for long texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cohort.tensors import TensorSpec

MAX_SPECS = 6
"""Tensors that are shown of a version: a model may have thousands of inputs."""

UNLIMITED = 10_000
"""The width of a table outside a terminal: each row is one line, or a line a tensor."""


class Footnotes:
    """Numbered texts that do not fit a cell; rows with the same text share a footnote."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, cell: str, *texts: str, style: str = "") -> Text:
        """Return a cell that refers to each of `texts`; empty texts are skipped."""
        marked = Text(cell, style)
        for text in filter(None, texts):
            marked.append(f" ({self._numbers.setdefault(text, len(self._numbers) + 1)})", "dim")
        return marked

    def lines(self) -> Iterator[Text]:
        """Yield the footnotes, for the lines below the table."""
        for text, number in self._numbers.items():
            yield Text(f"({number}) {text}")

    def __contains__(self, text: str) -> bool:
        return text in self._numbers


def version_table(*columns: str, whole: Collection[str]) -> Table:
    """Make a table with these columns; on a narrow terminal, lines break between words.

    whole: The columns without line breaks.
    """
    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    return table


def spec_cell(specs: Sequence[TensorSpec]) -> Text:
    """Return names, datatypes and shapes, a line each, at most MAX_SPECS."""
    lines = [f"{one.name} {one.datatype} {one.shape_text}" for one in specs[:MAX_SPECS]]
    if len(specs) > MAX_SPECS:
        lines.append(f"and {len(specs) - MAX_SPECS} more")
    return Text("\n".join(lines))
