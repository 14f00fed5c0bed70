"""Findings on models, stored in files that survive restarts and are shared by processes.

A file's name is a digest of the model's digest and of everything else that the finding depends on.
Each write replaces the whole file. A truncated or foreign file counts as absent.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from cohort.inspection.job import read_verdict, write_verdict
from cohort.row_independence import RowVerdict
from cohort.system.kept_files import path_for, read_small, write_whole

log = structlog.get_logger("cohort.inspection")

FINDING_FORMAT = 4
"""The format version. Increase it if the stored data or the inspection changes."""

MAX_KEPT = 10_000
"""Maximum number of stored findings, about 10 MB; beyond it, the oldest half is deleted."""

MAX_FINDING_BYTES = 1 << 20
"""Maximum size of a findings file; larger files were not written by Cohort."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an inspection.

    external: SHA-256 digests of the model's external data, in hex, by location.
    harm: The damage that opening the model does to a process; "" if it does no damage.
    peak: Peak memory of opening and running the model, in bytes; 0 if unknown.
    rows: The verdict on whether rows influence each other; None if it is unknown.
    """

    external: Mapping[str, str]
    harm: str
    peak: int = 0
    rows: RowVerdict | None = None


class Findings:
    """The findings stored in one cache folder. Never raises if the folder is unusable."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "inspections"
        self._complained = False

    def read(self, key: Mapping[str, str]) -> Finding | None:
        """Return the finding stored for exactly this key; None if there is no usable one."""
        try:
            content = json.loads(read_small(self._path(key), MAX_FINDING_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("kept finding is not usable", model=key["model"], error=str(error))
            return None
        match content:
            case {
                "key": dict(known),
                "external": dict(files),
                "harm": str(harm),
                "peak": int(peak),
                "rows": rows,
            }:
                texts = all(isinstance(one, str) for pair in files.items() for one in pair)
                with contextlib.suppress(ValueError):
                    if known == dict(key) and texts and peak >= 0:
                        return Finding(files, harm, peak, read_verdict(rows))
        log.warning("kept finding is not usable", model=key["model"], error="it is another one")
        return None

    def write(self, key: Mapping[str, str], finding: Finding) -> None:
        """Store `finding`; it replaces an older finding for this key."""
        rows = None if finding.rows is None else write_verdict(finding.rows)
        content = {"key": dict(key), **asdict(replace(finding, rows=None)), "rows": rows}
        text = json.dumps(content, indent=1)
        try:
            write_whole(self._path(key), text)
            self._delete_oldest()
        except OSError as error:
            self._complain(error)

    def _delete_oldest(self) -> None:
        files = list(self._folder.iterdir())
        if len(files) <= MAX_KEPT:
            return
        ages = []
        for file in files:
            with contextlib.suppress(OSError):  # another process may delete the same file
                ages.append((file.stat().st_mtime, file))
        for _, file in sorted(ages)[: len(files) - MAX_KEPT // 2]:
            file.unlink(missing_ok=True)

    def _path(self, key: Mapping[str, str]) -> Path:
        return path_for(self._folder, FINDING_FORMAT, key)

    def _complain(self, error: OSError) -> None:
        """Log once that findings cannot be stored."""
        if not self._complained:
            self._complained = True
            log.warning(
                "findings on models cannot be kept, so each start inspects them again; set "
                "COHORT_CACHE to a folder that can be written",
                folder=str(self._folder),
                error=error.strerror or str(error),
            )
