"""Tables of how plain the project's English is, by part: `python -m tools.prose --counts`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.prose.passages import Kind, find_passages
from tools.prose.rules import Finding, Rule
from tools.prose.sentences import split_sentences

COLUMNS = ("words", "sentences", *Rule, "words a sentence", "commas a sentence")


@dataclass(slots=True)
class Part:
    """The counts of some files. Paragraphs of documents and docstrings count for averages."""

    words: int = 0
    """All words, those of headings, cells, messages and comments included."""
    sentences: int = 0
    whole_sentences: int = 0
    """Those of paragraphs and docstrings: neither headings, cells, messages nor comments."""
    their_words: int = 0
    their_commas: int = 0
    findings: Counter[Rule] = field(default_factory=Counter)

    def row(self) -> list[str]:
        """Return the numbers in the order of `COLUMNS`."""
        whole = self.whole_sentences or 1
        return [
            str(self.words),
            str(self.sentences),
            *(str(self.findings[rule]) for rule in Rule),
            f"{self.their_words / whole:.1f}",
            f"{self.their_commas / whole:.2f}",
        ]


def count(sources: Mapping[str, str], findings: Sequence[Finding]) -> dict[str, Part]:
    """Count files by part, in the order of their names, and all documents and all code."""
    parts: defaultdict[str, Part] = defaultdict(Part)
    totals: defaultdict[str, Part] = defaultdict(Part)
    for path, source in sorted(sources.items()):
        for part in (parts[name_part(path)], totals[_name_total(path)]):
            _add(part, path, source)
    for finding in findings:
        for part in (parts[name_part(finding.path)], totals[_name_total(finding.path)]):
            part.findings[finding.rule] += 1
    return parts | totals


def _add(part: Part, path: str, source: str) -> None:
    for passage in find_passages(path, source):
        for sentence in split_sentences(passage):
            part.words += len(sentence.words)
            part.sentences += 1
            if passage.kind in (Kind.PARAGRAPH, Kind.DOCSTRING):
                part.whole_sentences += 1
                part.their_words += len(sentence.words)
                part.their_commas += sentence.read.count(",")


def _name_total(path: str) -> str:
    return "all documents" if path.endswith(".md") else "all code"


def name_part(path: str) -> str:
    """Return the part of the project that a file belongs to.

    Documents count by folder, code by package. Files at the root or outside are their own part.
    """
    folders = path.split("/")[:-1]
    if not folders or path.startswith("/"):
        return path
    depth = 3 if folders[0] == "app" else 2
    suffix = "/*.md" if path.endswith(".md") else ""
    return "/".join(folders[:depth]) + suffix


def write_table(parts: Mapping[str, Part]) -> str:
    """Return a Markdown table with a row for each part."""
    rows = [["part", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    rows += [[name, *part.row()] for name, part in parts.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
