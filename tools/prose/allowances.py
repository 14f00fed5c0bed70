"""Findings that are allowed: exceptions, each with its reason, and a budget for each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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


def read_budget(text: str) -> dict[str, int]:
    """Read `budget.txt`: a number and a path on each line.

    If a merge left two lines for a path, the lower number holds.
    """
    budget: dict[str, int] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            number, path = line.split(maxsplit=1)
            budget[path] = min(int(number), budget.get(path, int(number)))
    return budget


def write_budget(budget: Mapping[str, int]) -> str:
    """Return the text of `budget.txt`."""
    return _HEAD + "".join(f"{number} {path}\n" for path, number in sorted(budget.items()))


_HEAD = """\
# Findings that each file still has, in `python -m tools.prose`. Numbers only go down: after you
# improve a text, run `python -m tools.prose --update`. A file without a line must have no findings.
"""


def over_budget(findings: Sequence[Finding], budget: Mapping[str, int]) -> list[Finding]:
    """Return all findings of the files that have more than their budget."""
    counts = Counter(one.path for one in findings)
    return [one for one in findings if counts[one.path] > budget.get(one.path, 0)]


def lower_budget(
    budget: Mapping[str, int], findings: Sequence[Finding], paths: Collection[str]
) -> dict[str, int]:
    """Return `budget` lowered to the findings of today. `paths`: all files that exist.

    A file that was renamed or divided takes the budget of files that are gone. Raises ValueError
    if there are more findings than that allows.
    """
    counts = Counter(one.path for one in findings)
    freed = sum(number for path, number in budget.items() if path not in paths)
    added = {path: number for path, number in counts.items() if path not in budget}
    worse = [path for path, number in budget.items() if counts[path] > number]
    if sum(added.values()) > freed:
        worse.extend(added)
    if worse:
        raise ValueError(f"more findings than before in {', '.join(sorted(worse))}")
    return dict(counts)
