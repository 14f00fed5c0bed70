"""Evidence from served requests against batching a model, kept over restarts by its digest.

A finding does not count with another build of ONNX Runtime, whose kernels may differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from cohort.batching import BatchPolicy
from cohort.profiling.result import ProfileResult
from cohort.profiling.sharing import why_unbatchable
from cohort.session import Session, runtime_build
from cohort.system.kept_files import path_for, read_small, write_whole

log = structlog.get_logger("cohort.profiling")

OTHER_BITS = "a shared run gave other bits"
"""Prefix of findings that count only under `batching.exact`."""

EXACT_ONLY = "exact"

ROW_FINDING_FORMAT = 1
"""Version of the file format; increment it when the content changes."""

MAX_FINDING_FILE_BYTES = 1 << 16
"""Larger files were not written by this module."""


class RowFindings:
    """The findings under one cache folder. Never raises if the folder cannot be used."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "rows"

    def read(self, digest: str, batching: BatchPolicy) -> str:
        """Return why requests of the model with this digest must not share runs; "" if unknown.

        batching: The batch policy of its config. Findings of padded runs count only with the same
            padding. Findings of other bits count only under `batching.exact`.
        """
        for pad in dict.fromkeys(("", _padding(batching), EXACT_ONLY if batching.exact else "")):
            if reason := self._read(self._path(digest, pad), digest):
                return reason
        return ""

    def _read(self, path: Path, digest: str) -> str:
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

    def write(self, digest: str, batching: BatchPolicy, reason: str) -> None:
        """Keep why requests of a model must not share runs under its config's batch policy."""
        found = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"model": digest, "reason": reason, "found": found}
        only = EXACT_ONLY if reason.startswith(OTHER_BITS) else _padding(batching)
        path = self._path(digest, only)
        try:
            write_whole(path, json.dumps(content, indent=1))
        except OSError as error:
            log.warning(
                "that a model cannot batch is not kept; it batches again after a restart",
                file=str(path),
                error=error.strerror or str(error),
            )

    def _unreadable(self, path: Path, why: str) -> str:
        """Return a reason for a finding that exists for this model but cannot be read."""
        log.warning("kept finding on rows is not usable", file=str(path), error=why)
        return f"a kept finding forbids batching, but cannot be read: {path.name}"

    def _path(self, digest: str, pad: str) -> Path:
        key = {"model": digest, "runtime": runtime_build(), "pad": pad}
        return path_for(self._folder, ROW_FINDING_FORMAT, key)


def _padding(batching: BatchPolicy) -> str:
    return repr(sorted(batching.pad.items())) if batching.pad else ""


def with_findings(
    result: ProfileResult,
    session: Session,
    batching: BatchPolicy,
    findings: RowFindings | None,
    digest: Callable[[], str],
) -> ProfileResult:
    """Return the profile, with batching off if served requests have shown that it must be.

    batching: The batch policy of the model's config; with `trust: refuted`, findings do not count.
    digest: Returns the model's digest; called only if needed. If it raises OSError because the
        files were deleted, the profile stays as it is.
    """
    off = why_unbatchable(session.inputs, session.outputs, session.rows, batching)
    if findings is None or off or not batching.batches or batching.trust == "refuted":
        return result
    with suppress(OSError):
        if reason := findings.read(digest(), batching):
            least = result.profile.least_rows if reason.startswith(OTHER_BITS) else 1
            single = replace(result.profile, max_batch_size=1, reason=reason, least_rows=least)
            return replace(result, profile=single, mixed=reason)
    return result
