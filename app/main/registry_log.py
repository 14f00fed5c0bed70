"""What happens to versions, in the log."""

from __future__ import annotations

from typing import Any

import structlog

from app.registry import (
    RegistryEvent,
    VersionDoubted,
    VersionEntry,
    VersionFailed,
    VersionLeftLoop,
    VersionMeasured,
    VersionReady,
    VersionUnbatched,
    VersionUnloaded,
)

log = structlog.get_logger("cohort")


def log_ready(ready: VersionReady, held_back: str) -> None:
    """Log that a version is ready; `held_back` is why requests that do not name it go elsewhere."""
    model, version, seconds = ready
    if version.engine is None:
        return
    version_log = log.bind(model=model, version=version.number)
    description = version.engine.describe()
    placement = description.placement
    version_log.info(
        "version ready",
        seconds=round(seconds, 3),
        provider=placement.active,
        sha256=description.files.get(version.source.path.name),
    )
    if placement.fell_back:
        version_log.warning(
            "provider fell back",
            wanted=placement.wanted[0],
            active=placement.active,
            reason=placement.reason,
        )
    if left_out := {
        one.name: one.datatype for one in version.engine.outputs if not one.transportable
    }:
        version_log.warning("outputs cannot be sent, and are left out", outputs=left_out)
    if held_back:
        version_log.warning("only requests that name the version reach it", reason=held_back)
    _log_verdicts(version_log, version, description.unpredictable)


def log_registry_event(event: RegistryEvent) -> None:
    """Log what happened to a version that is ready, or is not."""
    match event:
        case VersionDoubted(model, number, reason):
            log.warning("profile is measured again", model=model, version=number, reason=reason)
        case VersionMeasured(model, version):
            _log_measured(model, version)
        case VersionFailed(model, number, reason, serving, retry_in):
            log.error(
                "version unavailable",
                model=model,
                version=number,
                reason=reason,
                former_files_serve=serving,
                retry_in_seconds=None if retry_in is None else round(retry_in, 1),
            )
        case VersionUnloaded(model, number):
            log.info("version unloaded", model=model, version=number)
        case VersionUnbatched(model, number, reason):
            log.warning("batching disabled", model=model, version=number, reason=reason)
        case VersionLeftLoop(model, number, reason):
            log.warning("runs left the event loop", model=model, version=number, reason=reason)


def _log_measured(model: str, version: VersionEntry) -> None:
    if version.engine is None:
        return
    version_log = log.bind(model=model, version=version.number)
    description = version.engine.describe()
    found = description.profile
    version_log.info(
        "version measured",
        max_batch_size=found.profile.max_batch_size,
        exclusive_threads=found.threads.chosen,
        kept=found.kept,
    )
    _log_verdicts(version_log, version, description.unpredictable)


def _log_verdicts(version_log: Any, version: VersionEntry, unpredictable: str) -> None:
    if unpredictable:
        version_log.info("runs stay off the event loop", reason=unpredictable)
    if version.batching_off:
        version_log.warning("requests run one by one", reason=version.batching_off)
    if version.padding_off:
        version_log.warning("requests are not padded to share a run", reason=version.padding_off)
