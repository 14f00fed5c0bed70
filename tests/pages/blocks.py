"""The fenced blocks of a page, with the marks in the comments before them."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in (
        *("*.md", "docs/**/*.md", "benchmarks/*.md", "models/*.md", "deploy/**/*.md"),
        "examples/**/*.md",
    )
    for page in ROOT.glob(pattern)
)

ASKED = os.environ.get("PAGES", "")
"""The pages to run, by name; `all` for all of them and the site, nothing for a sample."""

RUN = frozenset({"sh", "bash", "python", "js"})
CHECKED = RUN | {"json", "yaml"}
SHOWN = frozenset({"dockerfile", "html", "ini", "mermaid", "nginx", "text"})
"""Languages that are neither run nor checked here."""

# A fence or a comment: the inside of one is not searched for the other.
PART = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\s`]*)[^\n]*\n(?P<text>.*?)^ *(?P=fence)`* *$"
    r"|<!-- *(?P<comment>.*?) *-->",
    re.DOTALL | re.MULTILINE,
)
MARK = re.compile(r"(not run|file): *(.*)|printed|run\n(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, at `line` of it.

    not_run: the reason why it cannot run here, or "".
    file: where it is saved, relative to a working copy, or "".
    printed: True if it shows the output of the block before it.
    """

    language: str
    text: str
    line: int
    not_run: str = ""
    file: str = ""
    printed: bool = False

    @property
    def runs(self) -> bool:
        return self.language in RUN and not (self.not_run or self.file or self.printed)

    @property
    def serves(self) -> bool:
        """True if it starts a server that runs after it."""
        return bool(re.search(r"(^|\s)(cohort|make) serve\b(?! --help)", self.text)) and self.runs


class BadMark(Exception):
    """A comment before a block whose mark is unknown."""


def blocks_of(page: str) -> Iterator[Block]:
    """Give the blocks of a page's text. Raises BadMark."""
    marks: dict[str, str] = {}
    marked = 0  # where the last mark ended
    prints = False  # True if the block before runs to its end, so that the next may show its output
    for part in PART.finditer(page):
        line = page.count("\n", 0, part.start()) + 1
        if part["comment"] is None:
            if marks and page[marked : part.start()].strip():
                raise BadMark(f"line {line}: text between a mark and its block")
            block = Block(
                part["language"],
                textwrap.dedent(part["text"]),
                line,
                not_run=marks.get("not run", ""),
                file=marks.get("file", ""),
                printed="printed" in marks,
            )
            if block.printed and not prints:
                raise BadMark(f"line {line}: no block that runs to its end is before this one")
            yield block
            prints = block.runs and not block.serves
            marks = {}
        elif mark := MARK.fullmatch(part["comment"]):
            if mark[3] is not None:
                yield Block("sh", f"{mark[3]}\n", line)
                prints = False
                continue
            name = mark[1] or "printed"
            if mark[1] and not mark[2]:
                raise BadMark(f"line {line}: '{name}:' says nothing")
            marks[name] = mark[2] or ""
            marked = part.end()
    if marks:
        raise BadMark(f"a mark after the last block: {', '.join(marks)}")
