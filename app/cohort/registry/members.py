"""Versions that are made of others: which of these they need, and what happens when those change.

A pipeline that loads before its members waits for their loads. One whose member does not serve any
more serves no more either, and is loaded again when the member is back; one whose member is another
now is loaded again beside itself, since it may not fit that.
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
    """What versions need which others. Cheap while there is no pipeline."""

    def __init__(self) -> None:
        self._needs: dict[VersionName, Needs] = {}
        self._pins: dict[str, set[int]] = {}
        self.stale: set[VersionName] = set()  # to be loaded again once their loads are over

    def __bool__(self) -> bool:
        return bool(self._needs)

    def set(self, version: VersionName, needs: Needs) -> None:
        """Remember what a version needs; nothing: it is not made of others, or is gone."""
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
        """Versions by model that are wanted besides those of the version policy."""
        if not self._pins:
            return pinned
        names = pinned.keys() | self._pins.keys()
        empty: AbstractSet[int] = frozenset()
        return {name: pinned.get(name, empty) | self._pins.get(name, empty) for name in names}

    def dependents(self, model: str) -> list[VersionName]:
        """The versions that need a version of a model."""
        return [
            one for one, needs in self._needs.items() if any(name == model for name, _ in needs)
        ]

    def models_needing(self, model: str) -> Iterable[str]:
        """The models with a version that needs one of this model, in some steps or at once."""
        found: dict[str, None] = {}
        waiting = [model]
        while waiting:
            for name, _ in self.dependents(waiting.pop()):
                if name != model and name not in found:
                    found[name] = None
                    waiting.append(name)
        return found


def serving_engines(model: ModelEntry | None) -> dict[int, Engine | None]:
    """What answers the READY versions of a model; None: there is no such model."""
    versions = {} if model is None else model.versions
    return {n: one.engine for n, one in versions.items() if one.state is State.READY}


def why_member_lacks(
    pipeline: PipelineDescription, find: Callable[[str, str | None], object]
) -> str:
    """Why a member of a pipeline cannot answer; "" where all can.

    find: Finds a READY version, or raises.
    """
    for step in pipeline.steps:
        try:
            find(step.model, None if step.version is None else str(step.version))
        except CohortError as error:
            return f"step {quoted(step.name)}: {error}"
    return ""
