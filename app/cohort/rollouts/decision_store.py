"""The server's decisions about rollouts, in the COHORT_STATE folder, where they survive restarts.

There is one file per decision, `rollouts/<model>/<version>.json`. It is written under a temporary
name and renamed. So processes that share the folder need no lock, and do not overwrite each other's
decisions. An unreadable file still names its version, and that version stays rolled back.

The end of a decision is also recorded: `<version>.<digest>.cleared` names the decision that ended.
    So a missing record means nothing, and a process that knows the decision writes it again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cohort.errors import MODEL_NAME, printable
from cohort.rollouts.ramp import MAX_STEPS, RampKey, RampProgress, RecordedRamps
from cohort.system.kept_files import read_small, written_beside

FOLDER = "rollouts"
RECORD_NAME = re.compile(r"([1-9][0-9]{0,17})\.json")
CLEARED_NAME = re.compile(r"([1-9][0-9]{0,17})\.([0-9a-f]{32})\.cleared")
RAMP_NAME = re.compile(r"([1-9][0-9]{0,17}\.[0-9a-f]{16})\.ramp")
MAX_RECORD_BYTES = 64 * 1024

MAX_RECORDS = 4096
"""Maximum of files that are read; a folder with more counts as unreadable."""

KEPT = 64
"""Number of clears of a model that are kept, for processes that could not read the folder.

The same number of its ramps is kept.
"""

MAX_RUNS = 10**9
"""Maximum runs of a ramp; a record of more is invalid."""

MAX_SOAKED = 1e10
"""Maximum soak time in seconds, some centuries; a record of more is invalid."""

MAX_NAME = 200
"""Maximum characters of the name of a process that cleared a decision, for log lines."""

RECORD_FORMAT = 1
"""Increased when a record's meaning changes; a record without a number has format 1."""

UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Decision:
    """A version of a model receives no more traffic.

    version: The version.
    reason: One word: the limit that was broken, "operator", "unreadable" or "unknown".
    detail: The reason as a sentence; default "".
    at: The date and time, in UTC and ISO 8601; default "": unknown.
    """

    version: int
    reason: str
    detail: str = ""
    at: str = ""

    @classmethod
    def now(cls, version: int, reason: str, detail: str) -> Decision:
        """Return a decision with the current time."""
        return cls(version, reason, detail, _now())

    @property
    def digest(self) -> str:
        """Identifies this decision among others about a version; equal in all processes."""
        content = json.dumps([self.version, self.reason, self.detail, self.at])
        return blake2b(content.encode(), digest_size=16).hexdigest()


Decisions = Mapping[str, Mapping[int, Decision]]
"""Decisions by model and version."""

Cleared = Mapping[str, frozenset[str]]
"""The digests of decisions that ended, by model."""

DecisionKey = tuple[str, int]
"""A model and a version."""


NO_RAMPS: RecordedRamps = {}

NOT_SAID: Mapping[str, str] = {}


class Recorded(NamedTuple):
    """The content of the state folder.

    decisions: The decisions in force.
    cleared: The decisions that were ended.
    problems: The problems of the files, in sentences.
    ramps: The progress of ramps; default: empty.
    cleared_by: The processes that cleared decisions, by digest; default: empty.
    """

    decisions: Decisions
    cleared: Cleared
    problems: Sequence[str]
    ramps: RecordedRamps = NO_RAMPS
    cleared_by: Mapping[str, str] = NOT_SAID


class DecisionStore:
    """The decisions of all processes that share `folder`.

    folder: The state folder; it may be missing.
    by: The name of this process, recorded with clears; default "".
    """

    def __init__(self, folder: Path, *, by: str = "") -> None:
        self._folder = folder / FOLDER
        self._by = by

    def read(self, known: Collection[str] = ()) -> Recorded:
        """Return the records. A missing folder is empty.

        known: Digests of decisions for which to read the process that cleared them; default: empty.

        Raises OSError if the folder cannot be read.
        """
        decisions: dict[str, dict[int, Decision]] = {}
        cleared: dict[str, frozenset[str]] = {}
        ramps: dict[str, dict[RampKey, RampProgress]] = {}
        problems: list[str] = []
        cleared_by: dict[str, str] = {}
        room = MAX_RECORDS
        for folder in _paths_in(self._folder, room):
            if not MODEL_NAME.fullmatch(folder.name):
                continue
            try:
                paths = _paths_in(folder, room)
            except NotADirectoryError:
                continue
            room -= len(paths)
            ended = {name[2]: path for path in paths if (name := CLEARED_NAME.fullmatch(path.name))}
            if ended:
                cleared[folder.name] = frozenset(ended)
            cleared_by |= {one: _read_who(ended[one]) for one in ended.keys() & known}
            found = {
                decision.version: decision
                for path in paths
                if (decision := _read_record(path, problems)) and decision.digest not in ended
            }
            if found:
                decisions[folder.name] = found
            if progress := _read_ramps(paths, problems):
                ramps[folder.name] = progress
        return Recorded(decisions, cleared, problems, ramps, cleared_by)

    def record(self, model: str, decision: Decision) -> None:
        """Write a decision, unless it was cleared; an earlier one about the same version stays.

        Raises OSError.
        """
        path, cleared = self._path(model, decision.version), self._cleared_path(model, decision)
        if cleared.exists() or self._stands(model, path):
            return
        _write(path, {"format": RECORD_FORMAT, **asdict(decision)})
        if cleared.exists():  # cleared by another process just now
            path.unlink(missing_ok=True)

    def clear(self, model: str, version: int, known: Decision | None = None) -> None:
        """End the recorded decision about a version, and the `known` one, if any.

        Raises OSError.
        """
        path = self._path(model, version)
        for key, progress in _read_ramps(_paths_in(path.parent, MAX_RECORDS), []).items():
            if key.startswith(f"{version}."):
                self.move_ramp(model, key, progress.restarted())
        for decision in {_read_record(path, []), known}:
            if decision is not None:
                content = {"cleared": _now(), "by": self._by, **asdict(decision)}
                _write(self._cleared_path(model, decision), content)
        path.unlink(missing_ok=True)
        _remove_oldest(path.parent, CLEARED_NAME)

    def move_ramp(self, model: str, key: RampKey, progress: RampProgress) -> bool:
        """Record the progress of a ramp, unless the record is further; return True if it was
        written.

        Raises OSError.
        """
        path = self._folder / model / f"{key}.ramp"
        try:
            if _read_progress(path) >= progress:
                return False
        except _OtherFormat:
            return False
        except (FileNotFoundError, *_INVALID):
            pass  # there is no readable record
        _write(path, {"format": RECORD_FORMAT, "at": _now(), **progress._asdict()})
        _remove_oldest(path.parent, RAMP_NAME)
        return True

    def _stands(self, model: str, path: Path) -> bool:
        """Return True if a decision in force, or unreadable by this release, is recorded."""
        try:
            standing = _read(path, int(path.stem))
        except OSError:
            return os.path.lexists(path)
        except _OtherFormat:
            return True
        except _INVALID:
            return False
        return not self._cleared_path(model, standing).exists()

    def _path(self, model: str, version: int) -> Path:
        return self._folder / model / f"{version}.json"

    def _cleared_path(self, model: str, decision: Decision) -> Path:
        return self._folder / model / f"{decision.version}.{decision.digest}.cleared"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_beside(path, json.dumps(content)) as temporary:
        temporary.replace(path)


def _paths_in(folder: Path, most: int) -> list[Path]:
    """Return the paths in a folder, sorted; [] if it is missing. Raises OSError."""
    try:
        paths = list(islice(folder.iterdir(), most + 1))
    except FileNotFoundError:
        return []
    if len(paths) > most:
        raise OSError(None, f"more than {MAX_RECORDS} files")
    return sorted(paths)


def _remove_oldest(folder: Path, name: re.Pattern[str]) -> None:
    """Keep the last KEPT files whose names match."""
    with suppress(OSError):
        found = [path for path in folder.iterdir() if name.fullmatch(path.name)]
        if len(found) > KEPT:
            found.sort(key=lambda path: path.stat().st_mtime_ns)
            for path in found[:-KEPT]:
                path.unlink(missing_ok=True)


def _read_ramps(paths: Sequence[Path], problems: list[str]) -> dict[RampKey, RampProgress]:
    """Read the progress of a model's ramps; an unreadable ramp starts at its first step."""
    found = {}
    for path in paths:
        if name := RAMP_NAME.fullmatch(path.name):
            try:
                found[name[1]] = _read_progress(path)
            except FileNotFoundError:
                continue
            except (OSError, *_INVALID):
                problems.append(
                    f"{FOLDER}/{path.parent.name}/{path.name} in the state folder cannot be read: "
                    "the ramp's progress is unknown, and this record does not move it"
                )
    return found


def _read_progress(path: Path) -> RampProgress:
    written = json.loads(read_small(path, MAX_RECORD_BYTES))
    if written["format"] != RECORD_FORMAT:
        raise _OtherFormat
    run, step, soaked = (written[key] for key in RampProgress._fields)
    if not (type(run) is type(step) is int and type(soaked) in {int, float}):
        raise TypeError
    if not (1 <= run <= MAX_RUNS and 0 <= step <= MAX_STEPS and 0 <= soaked <= MAX_SOAKED):
        raise ValueError  # also for NaN and Infinity
    return RampProgress(run, step, float(soaked))


def _read_record(path: Path, problems: list[str]) -> Decision | None:
    """Read a record, even if it is damaged; None if it is gone or not a record."""
    if not (number := RECORD_NAME.fullmatch(path.name)):
        return None
    version = int(number[1])
    try:
        return _read(path, version)
    except FileNotFoundError:
        return None  # cleared since
    except (OSError, *_INVALID) as error:
        match error:
            case OSError():
                why = error.strerror
            case _OtherFormat():
                why = str(error)
            case _:
                why = "invalid content"
    problems.append(
        f"{FOLDER}/{path.parent.name}/{path.name} in the state folder cannot be read ({why}): "
        f"version {version} stays rolled back until it is cleared"
    )
    return Decision(version, UNREADABLE, "its record cannot be read", _written_at(path))


def _read_who(path: Path) -> str:
    """Return the process that cleared a decision, and the time; "" if not recorded."""
    try:
        written = json.loads(read_small(path, MAX_RECORD_BYTES))
        by, at = str(written["by"]), str(written["cleared"])
    except (OSError, *_INVALID):
        return ""
    return printable(f"{by}, {at}", MAX_NAME) if by else ""


def _written_at(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class _OtherFormat(ValueError):
    """A record of another release."""


_INVALID = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def _read(path: Path, version: int) -> Decision:
    written = json.loads(read_small(path, MAX_RECORD_BYTES))
    if written.get("format", RECORD_FORMAT) != RECORD_FORMAT:
        raise _OtherFormat(f"another release wrote it: it is not of format {RECORD_FORMAT}")
    texts = {key: written.get(key, "") for key in ("detail", "at")}
    reason = written["reason"]
    if not all(isinstance(text, str) for text in (reason, *texts.values())):
        raise TypeError
    return Decision(version, reason, **texts)
