"""Findings on models in files, kept between starts and shared by processes.

A file is named after the digest of the model's file and of everything else that a finding depends
on. It is replaced whole; a torn or foreign one counts as absent.
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
"""Raised whenever what is kept, or how a model is inspected, changes."""

MAX_KEPT = 10_000
"""Beyond, the oldest half is deleted: about 10 MB."""

MAX_FINDING_BYTES = 1 << 20
"""Larger files are none of ours."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an inspection found.

    external: The SHA-256 of the model's external data, in hex, by location.
    harm: What opening the model does to a process; "" where it does none.
    peak: The bytes of memory that opening and running it took; default 0: not known.
    rows: Whether rows of a run influence each other; default None: it was not found out.
    """

    external: Mapping[str, str]
    harm: str
    peak: int = 0
    rows: RowVerdict | None = None


class Findings:
    """The kept findings under one cache folder. Never raises where that cannot be used."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "inspections"
        self._complained = False

    def read(self, key: Mapping[str, str]) -> Finding | None:
        """What was kept for exactly this key; None where nothing usable was."""
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
        """Keep `finding`, in place of what was kept for this key."""
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
            with contextlib.suppress(OSError):  # another process deletes as well
                ages.append((file.stat().st_mtime, file))
        for _, file in sorted(ages)[: len(files) - MAX_KEPT // 2]:
            file.unlink(missing_ok=True)

    def _path(self, key: Mapping[str, str]) -> Path:
        return path_for(self._folder, FINDING_FORMAT, key)

    def _complain(self, error: OSError) -> None:
        """Log, once, that findings are not kept."""
        if not self._complained:
            self._complained = True
            log.warning(
                "findings on models cannot be kept, so each start inspects them again; set "
                "COHORT_CACHE to a folder that can be written",
                folder=str(self._folder),
                error=error.strerror or str(error),
            )
