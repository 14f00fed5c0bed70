"""What served requests have shown against batching a model, kept by its digest over restarts.

With another build of ONNX Runtime, whose kernels may differ, it does not count.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import structlog

from app.kept_files import path_for, read_small, write_whole
from app.session import runtime_build

log = structlog.get_logger("cohort.profiling")

ROW_FINDING_FORMAT = 1
"""Raised whenever what is kept changes."""

MAX_FINDING_FILE_BYTES = 1 << 16
"""Larger files are none of ours."""


class RowFindings:
    """The findings under one cache folder. Never raises where that cannot be used."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "rows"

    def read(self, digest: str) -> str:
        """Why requests of the model with this digest must not share runs; "" where unknown."""
        path = self._path(digest)
        try:
            content = json.loads(read_small(path, MAX_FINDING_FILE_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ValueError, RecursionError) as error:
            return self._unreadable(path, str(error))
        match content:
            case {"model": str(model), "reason": str(reason)} if model == digest and reason:
                return reason
        return self._unreadable(path, "it is another one")

    def write(self, digest: str, reason: str) -> None:
        """Keep why requests of a model must not share runs."""
        found = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"model": digest, "reason": reason, "found": found}
        path = self._path(digest)
        try:
            write_whole(path, json.dumps(content, indent=1))
        except OSError as error:
            log.warning(
                "that a model cannot batch is not kept; it batches again after a restart",
                file=str(path),
                error=error.strerror or str(error),
            )

    def _unreadable(self, path: Path, why: str) -> str:
        """Somebody kept a finding for this model: what it says is not known, but that is."""
        log.warning("kept finding on rows is not usable", file=str(path), error=why)
        return f"a kept finding says so, and cannot be read: {path.name}"

    def _path(self, digest: str) -> Path:
        return path_for(
            self._folder, ROW_FINDING_FORMAT, {"model": digest, "runtime": runtime_build()}
        )
