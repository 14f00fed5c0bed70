"""Version numbers, and the one that a change needs."""

from __future__ import annotations

import re
from typing import NamedTuple

from tools.release.differences import Change

_VERSION = re.compile(r"v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class Version(NamedTuple):
    """A released version, such as 1.2.3."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def after(self, change: Change) -> Version:
        """Return the next version for a change. Before 1.0.0, each change counts one part less."""
        if self.major == 0:
            change = Change(max(change - 1, 0))
        match change:
            case Change.MAJOR:
                return Version(self.major + 1, 0, 0)
            case Change.MINOR:
                return Version(self.major, self.minor + 1, 0)
        return Version(self.major, self.minor, self.patch + 1)


def parse_version(text: str) -> Version:
    """Return the version of `1.2.3` or `v1.2.3`. Raises ValueError."""
    found = _VERSION.fullmatch(text)
    if not found:
        raise ValueError(f"a version must be three numbers, such as 1.2.3, got {text!r}")
    return Version(*map(int, found.groups()))
