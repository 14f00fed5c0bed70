"""Divide a passage into sentences, with the line of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.prose.passages import Kind, Passage


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as it is written, and as rules read it."""

    kind: Kind
    line: int
    """The line of the file that it starts in, from 1."""
    last_line: int
    written: str
    read: str
    """The same with each code span, address and placeholder as one word of underscores."""

    @property
    def words(self) -> list[str]:
        """The words, with their punctuation. A code span is one word."""
        return [word for word in self.read.split() if re.search(r"\w", word)]


def split_sentences(passage: Passage) -> list[Sentence]:
    """Return the sentences of `passage` in their order. The last one may have no end mark."""
    read = _CODE.sub(lambda code: "_" * len(code[0]), passage.text)
    ends = [end for end in _END.finditer(read) if not _ABBREVIATION.search(read, 0, end.start())]
    found = []
    start = 0
    for end in [*(end.end() for end in ends), len(read)]:
        written = passage.text[start:end].strip()
        if re.search(r"\w", written):
            line = passage.line + passage.text.count("\n", 0, start)
            last = line + written.count("\n")
            found.append(Sentence(passage.kind, line, last, written, read[start:end].strip()))
        start = end
    return found


_CODE = re.compile(
    r"(?::\w+:)?``[^`]+(?:`[^`]+)*``|(?::\w+:)?`[^`]+`|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|<?https?://[^\s>)]+>?"
)
_END = re.compile(r"""(?<=[.!?])["'\u201d\u2019)\]*]*\s+(?=["'\u201c\u2018(\[*]*[A-Z0-9_])""")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|vs|cf|no|fig|approx|incl|[A-Z])|\.\.)\.$", re.IGNORECASE
)
