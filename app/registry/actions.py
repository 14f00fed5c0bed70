"""What should be loaded, and what to do about the difference."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from app.registry.catalog import Catalog, Source, State
from app.repository import Found, FoundModel, ModelConfig, Snapshot


class Load(NamedTuple):
    """Open this version, beside the old one if there is one."""

    model: str
    number: int
    source: Source


class Unload(NamedTuple):
    """Let this version go."""

    model: str
    number: int


Wanted = Mapping[str, Mapping[int, Source]]
"""By model and version. A model that is gone from disk is not in it."""


NOBODY: AbstractSet[str] = frozenset()
NONE: Mapping[str, AbstractSet[int]] = {}


def wanted(
    snapshot: Snapshot,
    catalog: Catalog,
    out: AbstractSet[str] = NOBODY,
    pinned: Mapping[str, AbstractSet[int]] = NONE,
) -> dict[str, dict[int, Source]]:
    """Say which versions should be loaded: those the policy says, and those that are `pinned`.

    A version that failed does not count towards `versions: {latest: n}`, so that the next older one
    is wanted in its place; it stays wanted itself, and is tried again when its files change. Those
    of models that an operator took `out` did not fail.
    """
    result: dict[str, dict[int, Source]] = {}
    for name, model in snapshot.models.items():
        sources = {number: _source(model, found) for number, found in model.versions.items()}
        known = catalog[name].versions if name in catalog and name not in out else {}
        failed = {
            number
            for number, entry in known.items()
            if entry.state is State.UNAVAILABLE and sources.get(number) == entry.source
        }
        policy = (model.config or ModelConfig()).versions
        numbers = policy.wanted(sources) | policy.wanted(sources.keys() - failed)
        numbers |= pinned.get(name, frozenset()) & sources.keys()
        result[name] = {number: sources[number] for number in sorted(numbers)}
    return result


def _source(model: FoundModel, found: Found) -> Source:
    problem = (
        model.problem if model.config is None else ""
    )  # a bad edit leaves the last good config
    return Source(found.path, found.stamp, model.config, problem)


def plan(wants: Wanted, catalog: Catalog, out: AbstractSet[str] = NOBODY) -> list[Load | Unload]:
    """Say what to load and what to unload, loads first.

    A version nobody wants stays until every wanted version of its model is ready, so that no model
    goes unavailable; one that never got ready goes at once. One that is wanted again while it is
    going is loaded anew, unless its model was taken `out`.
    """
    loads: list[Load | Unload] = []
    unloads: list[Load | Unload] = []
    for name, sources in wants.items():
        known = catalog[name].versions if name in catalog else {}
        for number, source in sources.items():
            entry = known.get(number)
            again = entry is not None and entry.state is State.UNLOADING and name not in out
            if entry is None or entry.source != source or again:
                loads.append(Load(name, number, source))
        complete = all(number in known and known[number].state is State.READY for number in sources)
        for number, entry in known.items():
            if number in sources or entry.state is State.UNLOADING:
                continue
            if complete or entry.state is State.UNAVAILABLE:
                unloads.append(Unload(name, number))
    for name, model in catalog.items():
        if name not in wants:
            unloads += [
                Unload(name, number)
                for number, entry in model.versions.items()
                if entry.state is not State.UNLOADING
            ]
    return loads + unloads
