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
    source: What it was loaded from, or what could not be loaded.
    reason: Why it is UNAVAILABLE, or why a READY one still serves its former files; default "".
    engine: What answers its requests; None unless it is READY or UNLOADING.
    batching_off: Why its requests run one by one although its config allows batches; default "".
    padding_off: Why its requests are not padded although its config says so; default "".
    mixed: What served requests have shown against batching it; default "": nothing.
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
        """Whether it serves its former files, because those on disk cannot be."""
        return self.state is State.READY and bool(self.reason)

    @property
    def has_independent_rows(self) -> bool:
        """Whether its graph proves that rows are independent, and no served request said else."""
        if self.engine is None or self.mixed:
            return False
        batching = self.engine.describe().batching
        return batching is not None and batching.rows.independent

    def profiled(self, found: ProfileResult | None) -> VersionEntry:
        """The same with what was found of batching; None: it has none."""
        if found is None:
            return self
        return replace(
            self,
            batching_off=found.profile.reason,
            padding_off=found.padding.reason,
            mixed=found.mixed,
        )

    def to_reload(self) -> VersionEntry:
        """The same as loaded from what is not on disk any more, so that it is loaded again."""
        return replace(self, source=replace(self.source, stamp=""), retry_at=None)

    def distrusted(self) -> VersionEntry:
        """The same without its engine: what signed it is trusted no more; to be loaded again."""
        reason = "the key that signed it was taken out of COHORT_TRUSTED_KEYS"
        return replace(self.to_reload(), state=State.UNAVAILABLE, engine=None, reason=reason)

    def by_tensors(self, model: str) -> BatchEngine:
        """Its engine, which answers requests that are tensors.

        model: Its model's name. Raises NotReady where it has none, or InvalidInput where that takes
        something else.
        """
        if self.engine is None:
            raise NotReady(f"version {self.number} of model {quoted(model)} is not loaded")
        if (engine := self.engine.by_tensors) is None:
            raise InvalidInput(f"model {quoted(model)} takes no tensors")
        return engine

    @property
    def signature(self) -> Signature | None:
        """What callers must know of it; None unless it is READY."""
        if self.engine is None or self.state is not State.READY:
            return None
        return Signature(self.engine.inputs, self.engine.outputs, self.engine.optional_inputs)


@dataclass(frozen=True)
class ModelEntry:
    """One model in the catalog, with its versions by number.

    `signatures` are those of its files on disk, where one version may not take over from another
    whatever its signature; default none.
    """

    name: str
    versions: Mapping[int, VersionEntry]
    signatures: Signatures = field(default_factory=dict)

    @cached_property
    def default(self) -> VersionEntry | None:
        """The version that answers where a request names none; None where there is none.

        It is the highest READY one that is not held back, or the highest READY one where all that
        are not held back have failed.
        """
        free = [one for one in self.versions.values() if one.number not in self.held_back]
        if all(one.state is State.UNAVAILABLE for one in free):
            free = list(self.versions.values())
        ready = [one for one in free if one.state is State.READY]
        return max(ready, key=lambda one: one.number, default=None)

    @cached_property
    def held_back(self) -> Mapping[int, str]:
        """Why versions must be asked for by number, by number.

        What serves counts, not what lies on disk by now. Where a config says what callers send, the
        signatures on disk are not theirs, and only versions that serve are compared.
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
        """Why versions run requests one by one that may share runs of `baseline`, by number.

        Going by whether rows are independent: that larger batches are not faster does not count.
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
    """In how many seconds it is worth asking again for a version that is not READY; None: never.

    now: On the monotonic clock.
    """
    waits = [
        1.0 if one.retry_at is None else max(1.0, one.retry_at - now)
        for one in versions
        if one.retry_at is not None or one.state in {State.LOADING, State.UNLOADING}
    ]
    return min(waits, default=None)


MAX_REASON = 400
"""Characters of a reason in a refusal; `/models` has all of it."""


def why_not_ready(versions: Iterable[VersionEntry]) -> str:
    """Say of the highest version what it is, and why: `version 2 is UNAVAILABLE: its file …`.

    For callers who may see the model, who may read the same in its description.
    """
    entry = max(versions, key=lambda one: one.number)
    line = " ".join(entry.reason[: 2 * MAX_REASON].split())
    reason = shortened(line, MAX_REASON)
    return f"version {entry.number} is {entry.state}{': ' if reason else ''}{reason}"


def find_model(name: str, catalog: Catalog, *, settled: bool) -> ModelEntry:
    """The entry of one model. `settled` is whether the first load pass is over.

    Raises ModelNotFound, or NotReady while it is not.
    """
    check_model_name(name)
    entry = catalog.get(name)
    if entry is None:
        if not settled:
            raise NotReady("the server is still loading its models")
        raise ModelNotFound(name, catalog)
    return entry
