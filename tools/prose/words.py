"""The words that the rules know, from `words.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

_WORDS = YAML(typ="safe").load((Path(__file__).parent / "words.yaml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Banned:
    """A phrase that plain English does not need."""

    pattern: re.Pattern[str]
    instead: str


def read_banned() -> list[Banned]:
    """Return the banned phrases in the order of the file."""
    return [
        Banned(re.compile(rf"(?<!\w)(?:{one['find']})(?!\w)", re.IGNORECASE), one["say"])
        for one in _WORDS["banned"]
    ]


def read_set(name: str) -> frozenset[str]:
    """Return the words of the list `name`."""
    return frozenset(_WORDS[name].split())
