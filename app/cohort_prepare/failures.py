"""Errors of preparing a model.

CohortError
└── PrepareFailed
    ├── Misused      exit 2
    └── Rejected     exit 1
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cohort.errors import CohortError


def name_path(path: Path, error: Exception) -> str:
    """Return the error's sentence with the path, in place of the file's name if it begins so."""
    sentence, name = str(error), f"{path.name} "
    return f"{path} {sentence[len(name) :]}" if sentence.startswith(name) else f"{path}: {sentence}"


class PrepareFailed(CohortError):
    """A step failed to make a model; the message is for the user.

    `findings` are keys for the command's JSON.
    """

    def __init__(self, message: str, findings: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.findings = findings or {}


class Misused(PrepareFailed):
    """The request cannot be fulfilled: a wrong option, missing package or unreadable file."""


class Rejected(PrepareFailed):
    """The model, or its framework, is at fault: it cannot be converted, differs or is invalid."""
