"""Selection of the versions to load, and plans of loads and unloads."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

from cohort.errors import available
from cohort.registry.catalog import Catalog, ModelEntry, State
from cohort.registry.source import Source
from cohort.repository import MODEL_FILE, Found, FoundModel, ModelConfig, Snapshot

T = TypeVar("T")


class Load(NamedTuple):
    """Load this version. A loaded version of the same number serves until then."""

    model: str
    number: int
    source: Source


class Unload(NamedTuple):
    """Unload this version once its requests are done."""

    model: str
    number: int


WantedVersions = Mapping[str, Mapping[int, Source]]
"""Sources by model and version number. Models that are no longer on disk are missing."""

NO_MODELS: AbstractSet[str] = frozenset()
NO_VERSIONS: Mapping[str, AbstractSet[int]] = {}


def select_versions(
    snapshot: Snapshot,
    catalog: Catalog,
    unloaded: AbstractSet[str] = NO_MODELS,
    pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS,
) -> dict[str, dict[int, Source]]:
    """Select the versions that should be loaded: by each model's version policy, and `pinned` ones.

    snapshot: The models on disk.
    catalog: The loaded and the failed versions.
    unloaded: Models that an operator unloaded; default: empty.
    pinned: Versions by model that are wanted if they are on disk; default: empty.

    A version that failed or is held back does not count towards `versions: {latest: n}`: the next
        older version is wanted in addition. The version itself remains wanted, and a failed one is
        retried when its files change. Versions of `unloaded` models do not count as failed.

    A version that the policy names is wanted even if it is not on disk; its problem is that it is
    missing. If a model has no version left on disk, its READY versions remain wanted.
    """
    result: dict[str, dict[int, Source]] = {}
    for name, model in snapshot.models.items():
        sources = {number: _source(model, found) for number, found in model.versions.items()}
        known = catalog[name].versions if name in catalog and name not in unloaded else {}
        failed = {
            number
            for number, entry in known.items()
            if entry.state is State.UNAVAILABLE and sources.get(number) == entry.source
        }
        policy = (model.config or ModelConfig()).versions
        passed_over = failed | ModelEntry(name, known, model.signatures).held_back.keys()
        numbers = policy.wanted(sources)
        while not (older := policy.wanted(sources.keys() - (passed_over & numbers))) <= numbers:
            numbers |= older
        numbers |= pinned.get(name, frozenset()) & sources.keys()
        numbers |= set(policy.only)
        if not sources:
            numbers |= {n for n, entry in known.items() if entry.state is State.READY}
        result[name] = {
            number: sources.get(number) or _missing(model, number) for number in sorted(numbers)
        }
    return result


def _source(model: FoundModel, found: Found) -> Source:
    # After a bad edit the last good config stays in use.
    problem = model.problem if model.config is None else ""
    return Source(found.path, found.stamp, model.config, problem, model.name, model.code)


def _missing(model: FoundModel, number: int) -> Source:
    path = model.folder / str(number) / MODEL_FILE
    reason = f"it is not on disk{available(model.versions)}"
    return Source(path, "", model.config, reason, model.name)


def plan(
    wanted: WantedVersions, catalog: Catalog, unloaded: AbstractSet[str] = NO_MODELS
) -> list[Load | Unload]:
    """List the loads and then the unloads that lead to the wanted versions.

    wanted: The versions that should be loaded.
    catalog: The loaded versions.
    unloaded: Models that an operator unloaded; default: empty.

    An unwanted version stays until every wanted version of its model is READY, so that the model
    always has a version that serves. An UNAVAILABLE version is unloaded at once. An UNLOADING
    version that is wanted again is loaded again, unless its model is in `unloaded`.
    """
    loads: list[Load | Unload] = []
    unloads: list[Load | Unload] = []
    for name, sources in wanted.items():
        known = catalog[name].versions if name in catalog else {}
        for number, source in sources.items():
            entry = known.get(number)
            again = entry is not None and entry.state is State.UNLOADING and name not in unloaded
            if entry is None or entry.source != source or again:
                loads.append(Load(name, number, source))
        complete = all(number in known and known[number].state is State.READY for number in sources)
        for number, entry in known.items():
            if number in sources or entry.state is State.UNLOADING:
                continue
            if complete or entry.state is State.UNAVAILABLE:
                unloads.append(Unload(name, number))
    for name, model in catalog.items():
        if name not in wanted:
            unloads += [
                Unload(name, number)
                for number, entry in model.versions.items()
                if entry.state is not State.UNLOADING
            ]
    return loads + unloads


def plan_model(
    model: str,
    snapshot: Snapshot,
    catalog: Catalog,
    unloaded: AbstractSet[str] = NO_MODELS,
    pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS,
) -> list[Load | Unload]:
    """List the loads and unloads of one model. The arguments are as in `select_versions`."""
    snapshot = Snapshot(_only(model, snapshot.models))
    catalog = _only(model, catalog)
    return plan(select_versions(snapshot, catalog, unloaded, pinned), catalog, unloaded)


def _only(model: str, models: Mapping[str, T]) -> Mapping[str, T]:
    return {model: models[model]} if model in models else {}


class PlannedModels:
    """Plans of many models; a model that needed nothing is planned again only after a change.

    A plan depends only on the files on disk and the catalog. Planning a thousand models after each
    scan held the event loop for 25 ms.
    """

    def __init__(self) -> None:
        self._done: dict[str, tuple[object, ...]] = {}  # by model, the state that needed no action

    def due(
        self,
        model: str,
        snapshot: Snapshot,
        catalog: Catalog,
        unloaded: AbstractSet[str] = NO_MODELS,
        pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS,
    ) -> list[Load | Unload]:
        """Return `plan_model`, or [] if nothing has changed since it returned []."""
        found, entry = snapshot.models.get(model), catalog.get(model)
        seen = found, entry, model in unloaded, pinned.get(model)
        if self._done.get(model) == seen:
            return []
        actions = plan_model(model, snapshot, catalog, unloaded, pinned)
        if actions or (found is None and entry is None):
            self._done.pop(model, None)
        else:
            self._done[model] = seen
        return actions
