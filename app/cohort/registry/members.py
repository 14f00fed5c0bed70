"""Pipelines: versions that need other versions, and their reaction to changes of these.

A pipeline that loads before its members waits for their loads. If a member no longer serves, the
pipeline stops serving, and is loaded again when the member is back. If a member is replaced, the
pipeline is loaded again while the loaded one serves, since it may not fit the new member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from cohort.errors import CohortError, quoted
from cohort.registry.catalog import ModelEntry, State
from cohort.registry.engine import Engine, PipelineDescription

VersionName = tuple[str, int]
"""A model and a number."""

Needs = AbstractSet[tuple[str, int | None]]
"""Models, each with a version; None: its default one."""


class MemberNeeds:
    """The needs of versions for other versions. Cheap without pipelines."""

    def __init__(self) -> None:
        self._needs: dict[VersionName, Needs] = {}
        self._pins: dict[str, set[int]] = {}
        self.stale: set[VersionName] = set()  # load them again after their current loads

    def __bool__(self) -> bool:
        return bool(self._needs)

    def set(self, version: VersionName, needs: Needs) -> None:
        """Set the needs of a version; empty: it needs no other version, or is gone."""
        if needs:
            self._needs[version] = needs
        elif self._needs.pop(version, None) is None:
            return
        self._pins = {}
        for each in self._needs.values():
            for model, number in each:
                if number is not None:
                    self._pins.setdefault(model, set()).add(number)

    def pinned(self, pinned: Mapping[str, AbstractSet[int]]) -> Mapping[str, AbstractSet[int]]:
        """Return versions by model that are wanted in addition to those of the version policy."""
        if not self._pins:
            return pinned
        names = pinned.keys() | self._pins.keys()
        empty: AbstractSet[int] = frozenset()
        return {name: pinned.get(name, empty) | self._pins.get(name, empty) for name in names}

    def dependents(self, model: str) -> list[VersionName]:
        """Return the versions that need a version of a model."""
        return [
            one for one, needs in self._needs.items() if any(name == model for name, _ in needs)
        ]

    def models_needing(self, model: str) -> Iterable[str]:
        """Return the models with a version that needs this model, directly or through others."""
        found: dict[str, None] = {}
        waiting = [model]
        while waiting:
            for name, _ in self.dependents(waiting.pop()):
                if name != model and name not in found:
                    found[name] = None
                    waiting.append(name)
        return found


def serving_engines(model: ModelEntry | None) -> dict[int, Engine | None]:
    """Return the engines of the READY versions of a model; None: there is no such model."""
    versions = {} if model is None else model.versions
    return {n: one.engine for n, one in versions.items() if one.state is State.READY}


def why_member_lacks(
    pipeline: PipelineDescription, find: Callable[[str, str | None], object]
) -> str:
    """Return why a member of a pipeline cannot answer; "" if all can.

    find: Finds a READY version, or raises.
    """
    for step in pipeline.steps:
        try:
            find(step.model, None if step.version is None else str(step.version))
        except CohortError as error:
            return f"step {quoted(step.name)}: {error}"
    return ""
