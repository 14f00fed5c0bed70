"""The server's decisions about rollouts, in the COHORT_STATE folder, where they survive restarts.

One file per decision, `rollouts/<model>/<version>.json`, written under a temporary name and
renamed: processes that share the folder need no lock, and none can lose another's decision. A file
that cannot be read still names its version, and that version stays rolled back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from app.errors import MODEL_NAME

FOLDER = "rollouts"
RECORD_NAME = re.compile(r"([1-9][0-9]{0,17})\.json")
MAX_RECORD_BYTES = 64 * 1024

RECORD_FORMAT = 1
"""Raised when what a record says changes its meaning; one without a number is of the first."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A version of a model receives no more traffic.

    version: The version.
    reason: One word: the limit that was broken, "operator", or "unreadable".
    detail: The reason as a sentence; default "".
    at: The date and time, in UTC and ISO 8601; default "": unknown.
    """

    version: int
    reason: str
    detail: str = ""
    at: str = ""

    @classmethod
    def now(cls, version: int, reason: str, detail: str) -> Decision:
        """A decision that is made at this moment."""
        return cls(version, reason, detail, datetime.now(UTC).isoformat(timespec="milliseconds"))


Decisions = Mapping[str, Mapping[int, Decision]]
"""By model and version."""

DecisionKey = tuple[str, int]
"""A model and a version."""


class DecisionStore:
    """The decisions of all processes that share `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def read(self) -> tuple[Decisions, list[str]]:
        """Return every decision that is in force, and what is wrong with the files, in sentences.

        A missing folder has none. Raises OSError where the folder cannot be read.
        """
        decisions: dict[str, dict[int, Decision]] = {}
        problems: list[str] = []
        for folder in _names_in(self._folder):
            if MODEL_NAME.fullmatch(folder.name) and (found := _read_model(folder, problems)):
                decisions[folder.name] = found
        return decisions, problems

    def record(self, model: str, decision: Decision) -> None:
        """Write a decision; an earlier one about the same version stays. Raises OSError."""
        path = self._path(model, decision.version)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                json.dump({"format": RECORD_FORMAT, **asdict(decision)}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def clear(self, model: str, version: int) -> None:
        """Remove a decision, if there is one. Raises OSError."""
        path = self._path(model, version)
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()

    def _path(self, model: str, version: int) -> Path:
        return self._folder / model / f"{version}.json"


def _names_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_model(folder: Path, problems: list[str]) -> dict[int, Decision]:
    decisions: dict[int, Decision] = {}
    for path in _names_in(folder):
        if not (number := RECORD_NAME.fullmatch(path.name)):
            continue
        version = int(number[1])
        try:
            decisions[version] = _read(path, version)
        except FileNotFoundError:
            continue  # cleared since
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            match error:
                case OSError():
                    why = error.strerror
                case _OtherFormat():
                    why = str(error)
                case _:
                    why = "invalid content"
            problems.append(
                f"{FOLDER}/{folder.name}/{path.name} in the state folder cannot be read ({why}): "
                f"version {version} stays rolled back until it is cleared or the file removed"
            )
            decisions[version] = Decision(version, "unreadable", "its record cannot be read")
    return decisions


class _OtherFormat(ValueError):
    """A record of another release."""


def _read(path: Path, version: int) -> Decision:
    with path.open("rb") as file:
        written = json.loads(file.read(MAX_RECORD_BYTES))
    if written.get("format", RECORD_FORMAT) != RECORD_FORMAT:
        raise _OtherFormat(f"another release wrote it: it is not of format {RECORD_FORMAT}")
    texts = {key: written.get(key, "") for key in ("detail", "at")}
    reason = written["reason"]
    if not all(isinstance(text, str) for text in (reason, *texts.values())):
        raise TypeError
    return Decision(version, reason, **texts)
