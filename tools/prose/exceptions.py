"""Findings that are allowed: exceptions, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ruamel.yaml import YAML

from tools.prose.rules import Finding


@dataclass(frozen=True, slots=True)
class Exceptional:
    """A sentence of one file that keeps its words."""

    path: str
    text: str
    """A part of the sentence, on one line."""
    why: str

    def covers(self, finding: Finding) -> bool:
        """Return True if `finding` is about this sentence."""
        return finding.path == self.path and self.text in " ".join(finding.sentence.split())


def read_exceptions(text: str) -> list[Exceptional]:
    """Read `exceptions.yaml`: for each path, a list of `text` and `why`. Raises KeyError."""
    entries = YAML(typ="safe").load(text) or {}
    return [
        Exceptional(path, entry["text"], entry["why"])
        for path, listed in entries.items()
        for entry in listed
    ]


def without_exceptions(
    findings: Sequence[Finding], exceptions: Sequence[Exceptional]
) -> tuple[list[Finding], list[Exceptional]]:
    """Return the findings that no exception covers, and the exceptions that cover none."""
    left = [one for one in findings if not any(each.covers(one) for each in exceptions)]
    unused = [each for each in exceptions if not any(each.covers(one) for one in findings)]
    return left, unused
