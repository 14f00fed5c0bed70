"""Log lines of versions' events."""

from __future__ import annotations

from typing import Any

import structlog

from cohort.process.startup import StartUp
from cohort.registry import (
    BatchingDescription,
    Engine,
    Registry,
    RegistryEvent,
    VersionEntry,
    VersionFailed,
    VersionLeftLoop,
    VersionMeasured,
    VersionProfileStale,
    VersionReady,
    VersionUnbatched,
    VersionUnloaded,
)
from cohort.repository import ModelConfig
from cohort.session import FILE_DECODERS

log = structlog.get_logger("cohort")

MAX_REASONS = 1024
"""Reasons that are remembered, so that each is logged once."""


class RegistryLog:
    """Logs the events of versions, each once.

    The reason why a provider is not available is logged once for all versions. The reason why
    requests run one by one is logged once for each version.

    registry: Provides the reasons why versions answer only requests that name them.
    table: While it is pending, it will show the states of versions, which are not logged then.
    """

    def __init__(self, registry: Registry, table: StartUp) -> None:
        self._registry, self._table = registry, table
        self._reasons: set[str] = set()
        self._verdicts: dict[tuple[str, int], list[str]] = {}  # the reasons logged for a version
        self._proven: dict[str, set[int]] = {}  # versions whose rows are independent, by model

    def observe(self, event: RegistryEvent) -> None:
        """Log an event of a version."""
        match event:
            case VersionReady(model, version, seconds):
                self._ready(model, version, seconds)
            case VersionProfileStale(model, number, reason):
                log.warning("profile is measured again", model=model, version=number, reason=reason)
            case VersionMeasured(model, version):
                _log_measured(model, version)
                self._log_verdicts(model, version)
            case VersionFailed(model, number, reason, serving, retry_in) if not self._table.pending:
                log.error(
                    "version unavailable",
                    model=model,
                    version=number,
                    reason=reason,
                    former_files_serve=serving,
                    retry_in_seconds=None if retry_in is None else round(retry_in, 1),
                )
            case VersionUnloaded(model, number):
                self._verdicts.pop((model, number), None)
                self._proven.get(model, set()).discard(number)
                log.info("version unloaded", model=model, version=number)
            case VersionUnbatched(model, number, reason):
                log.warning("batching disabled", model=model, version=number, reason=reason)
            case VersionLeftLoop(model, number, reason):
                log.warning("runs left the event loop", model=model, version=number, reason=reason)

    def _ready(self, model: str, version: VersionEntry, seconds: float) -> None:
        if version.engine is None:
            return
        held_back = self._registry.model(model).held_back.get(version.number, "")
        version_log = log.bind(model=model, version=version.number)
        description = version.engine.describe()
        placement = description.placement
        if not self._table.pending:
            version_log.info(
                "version ready",
                seconds=round(seconds, 3),
                provider=placement.active,
                sha256=description.files.get(version.source.path.name),
                **({"signed_by": signer[:12]} if (signer := description.published.signer) else {}),
            )
            if placement.fell_back and self._is_new(placement.reason):
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
        config = version.source.config
        if config is not None and config.session.custom_op_libraries:
            _warn_of_decoders(version_log, version.engine, config)
        if held_back:
            version_log.warning("only requests that name the version reach it", reason=held_back)
        if (batching := description.batching) is not None:
            self._log_batching(model, version, batching)
        self._verdicts[model, version.number] = []
        self._log_verdicts(model, version)

    def _log_batching(
        self, model: str, version: VersionEntry, batching: BatchingDescription
    ) -> None:
        version_log = log.bind(model=model, version=version.number)
        if batching.unpredictable:
            version_log.info("runs stay off the event loop", reason=batching.unpredictable)
        proven = self._proven.setdefault(model, set())
        if batching.rows.independent:
            proven.add(version.number)
        elif proven and version.batching_off:
            before, reason = max(proven), version.batching_off
            version_log.warning("batching is lost", version_with_it=before, reason=reason)

    def _log_verdicts(self, model: str, version: VersionEntry) -> None:
        """Log why requests run one by one, unless it was logged for this version."""
        logged = self._verdicts.setdefault((model, version.number), [])
        for event, reason, in_table in (
            ("requests run one by one", version.batching_off, self._table.pending),
            ("requests are not padded to share a run", version.padding_off, False),
        ):
            if reason and reason not in logged:
                logged.append(reason)
                if not in_table:
                    log.warning(event, model=model, version=version.number, reason=reason)

    def _is_new(self, reason: str) -> bool:
        if reason in self._reasons:
            return False
        if len(self._reasons) >= MAX_REASONS:
            self._reasons.clear()
        self._reasons.add(reason)
        return True


def _log_measured(model: str, version: VersionEntry) -> None:
    batching = None if version.engine is None else version.engine.describe().batching
    if batching is None:
        return
    version_log = log.bind(model=model, version=version.number)
    found = batching.profile
    version_log.info(
        "version measured",
        max_batch_size=found.profile.max_batch_size,
        exclusive_threads=found.threads.chosen,
        kept=found.kept,
    )


def _warn_of_decoders(version_log: Any, engine: Engine, config: ModelConfig) -> None:
    decoders = {
        node.operator for node in engine.assigned_nodes()
        if tuple(node.operator.rsplit(".", 1)) in FILE_DECODERS
    }  # fmt: skip
    if not decoders:
        return
    reason = (
        f"the model decodes images with {', '.join(sorted(decoders))}. This kills the process if "
        "the bytes are neither JPEG nor PNG, and may never end on a truncated JPEG "
        "(onnxruntime-extensions #1094, #1096)"
    )
    instead = "to let the model take pixels, set `inputs: {<input>: {image: {}}}` in config.yaml"
    if config.trust_decoder:
        version_log.warning("callers can end this process", reason=f"{reason}; {instead}")
    else:
        version_log.warning(
            "callers can end the process of this model",
            reason=f"{reason}. It runs in a separate process, which is restarted; until then, "
            f"other requests get 503; {instead}",
        )
