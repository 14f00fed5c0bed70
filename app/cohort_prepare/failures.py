"""How preparing a model ends without one.

CohortError
└── PrepareFailed
    ├── Misused      exit 2
    └── Rejected     exit 1
"""

from __future__ import annotations

from collections.abc import Mapping

from cohort.errors import CohortError


class PrepareFailed(CohortError):
    """A step did not give a model; the message is for whoever started it.

    `findings` are for machines: keys of the command's JSON.
    """

    def __init__(self, message: str, findings: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.findings = findings or {}


class Misused(PrepareFailed):
    """What was asked for cannot be done: a wrong option, a missing package, an unreadable file."""


class Rejected(PrepareFailed):
    """The model is at fault, or what makes it: it cannot be converted, differs, is not valid."""
