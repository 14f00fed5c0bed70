"""The catalog: an immutable snapshot of all models and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from cohort.errors import (
    InvalidInput,
    ModelNotFound,
    NotReady,
    check_model_name,
    quoted,
    shortened,
)
from cohort.profiling import ProfileResult
from cohort.registry.engine import BatchEngine, Engine
from cohort.registry.source import Source
from cohort.registry.succession import hold_back
from cohort.repository import Signatures
from cohort.session import Signature


class State(StrEnum):
    """The state of a version."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


UNLOADED = "unloaded"
"""The reason of a version whose model an operator unloaded."""

RESTING = "not loaded; a request for it loads it (COHORT_MAX_LOADED_MODELS)"
"""The reason of a version whose model is loaded on demand."""

NOT_FAILED = frozenset({"", UNLOADED, RESTING})
"""The reasons of versions that did not fail to load."""


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version in the catalog.

    number: The version number.
    state: Its state.
    source: The files it was loaded from, or that could not be loaded.
    reason: Why it is UNAVAILABLE, or why a READY one still serves its previous files; default "".
    engine: Answers its requests; None unless it is READY or UNLOADING.
    batching_off: Why its requests run one by one although its config allows batches; default "".
    padding_off: Why its requests are not padded although its config asks for it; default "".
    mixed: Evidence from served requests against batching it; default "": no evidence.
    retry_at: When it is loaded again, in seconds on the monotonic clock; default None: when its
        files change, or an operator asks.
    """

    number: int
    state: State
    source: Source
    reason: str = ""
    engine: Engine | None = None
    batching_off: str = ""
    padding_off: str = ""
    mixed: str = ""
    retry_at: float | None = None

    @property
    def outdated(self) -> bool:
        """True if it serves its previous files, because those on disk cannot be loaded."""
        return self.state is State.READY and bool(self.reason)

    @property
    def has_independent_rows(self) -> bool:
        """True if its graph proves that rows are independent and no served request disproved it."""
        if self.engine is None or self.mixed:
            return False
        batching = self.engine.describe().batching
        return batching is not None and batching.rows.independent

    def profiled(self, found: ProfileResult | None) -> VersionEntry:
        """Return the entry with the findings of a profile; None: no change."""
        if found is None:
            return self
        return replace(
            self,
            batching_off=found.profile.reason,
            padding_off=found.padding.reason,
            mixed=found.mixed,
        )

    def to_reload(self) -> VersionEntry:
        """Return the entry with its source marked as changed, so that it is loaded again."""
        return replace(self, source=replace(self.source, stamp=""), retry_at=None)

    def distrusted(self) -> VersionEntry:
        """Return the entry without its engine, to be loaded again: its signer lost trust."""
        reason = "the key that signed it was removed from COHORT_TRUSTED_KEYS"
        return replace(self.to_reload(), state=State.UNAVAILABLE, engine=None, reason=reason)

    def by_tensors(self, model: str) -> BatchEngine:
        """Return its engine, which answers requests that are tensors.

        model: The name of its model. Raises NotReady if the version has no engine, or InvalidInput
            if the engine does not accept tensors.
        """
        if self.engine is None:
            raise NotReady(f"version {self.number} of model {quoted(model)} is not loaded")
        if (engine := self.engine.by_tensors) is None:
            raise InvalidInput(f"model {quoted(model)} does not accept tensors")
        return engine

    @property
    def signature(self) -> Signature | None:
        """Its inputs and outputs for callers; None unless it is READY."""
        if self.engine is None or self.state is not State.READY:
            return None
        return Signature(self.engine.inputs, self.engine.outputs, self.engine.optional_inputs)


@dataclass(frozen=True)
class ModelEntry:
    """One model in the catalog, with its versions by number.

    `signatures` are those of its files on disk, if a change of signature holds a version back;
    default: empty.
    """

    name: str
    versions: Mapping[int, VersionEntry]
    signatures: Signatures = field(default_factory=dict)

    @cached_property
    def default(self) -> VersionEntry | None:
        """The version that answers requests without a version; None if no version is READY.

        It is the highest READY version that is not held back. If all others have failed, it is the
        highest READY version.
        """
        free = [one for one in self.versions.values() if one.number not in self.held_back]
        if all(one.state is State.UNAVAILABLE for one in free):
            free = list(self.versions.values())
        ready = [one for one in free if one.state is State.READY]
        return max(ready, key=lambda one: one.number, default=None)

    @cached_property
    def held_back(self) -> Mapping[int, str]:
        """Why versions answer only requests that name them, by number.

        Signatures of loaded versions take precedence over those of the files on disk. If a config
        changes the inputs that callers send, the signatures on disk do not apply. Then only loaded
        versions are compared.
        """
        served = {number: one.signature for number, one in self.versions.items()}
        configs = [one.source.config for one in self.versions.values()]
        if any(config is not None and config.changes_signature for config in configs):
            return hold_back({n: served.get(n) for n in self.signatures})
        return hold_back({n: served.get(n) or one for n, one in self.signatures.items()})

    @cached_property
    def ready(self) -> frozenset[int]:
        """The numbers of the READY versions."""
        return frozenset(n for n, one in self.versions.items() if one.state is State.READY)

    def batching_lost(self, baseline: int) -> Mapping[int, str]:
        """Return why versions run requests one by one that could share runs of `baseline`, by
        number.

        Only the independence of rows counts, not the speed of larger batches.
        """
        before = self.versions.get(baseline)
        if before is None or not before.has_independent_rows:
            return {}
        return {
            number: one.batching_off
            for number, one in self.versions.items()
            if one.engine is not None and one.batching_off and not one.has_independent_rows
        }


Catalog = Mapping[str, ModelEntry]
"""Every model by name."""


def seconds_until_ready(versions: Iterable[VersionEntry], now: float) -> float | None:
    """Return seconds after which a retry for versions that are not READY makes sense; None: never.

    now: On the monotonic clock.
    """
    waits = [
        1.0 if one.retry_at is None else max(1.0, one.retry_at - now)
        for one in versions
        if one.retry_at is not None or one.state in {State.LOADING, State.UNLOADING}
    ]
    return min(waits, default=None)


MAX_REASON = 400
"""Characters of a reason in a refusal; `/models` has the whole reason."""


def why_not_ready(versions: Iterable[VersionEntry]) -> str:
    """Describe the highest version's state and reason: `version 2 is UNAVAILABLE: its file …`.

    For callers that may see the model; its description has the same reason.
    """
    entry = max(versions, key=lambda one: one.number)
    line = " ".join(entry.reason[: 2 * MAX_REASON].split())
    reason = shortened(line, MAX_REASON)
    return f"version {entry.number} is {entry.state}{': ' if reason else ''}{reason}"


def find_model(name: str, catalog: Catalog, *, settled: bool) -> ModelEntry:
    """Return the entry of one model. `settled`: True if the first load pass has ended.

    Raises ModelNotFound, or NotReady before `settled`.
    """
    check_model_name(name)
    entry = catalog.get(name)
    if entry is None:
        if not settled:
            raise NotReady("the server is still loading its models")
        raise ModelNotFound(name, catalog)
    return entry
