"""Which version each difference between two surfaces needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from enum import IntEnum
from typing import NamedTuple

from tools.release.facts import Facts, Items


class Change(IntEnum):
    """The part of the version that must rise, by Semantic Versioning."""

    PATCH = 0
    MINOR = 1
    MAJOR = 2


class Difference(NamedTuple):
    """A name that was added, removed or changed.

    what: The change in words, such as `was removed`.
    """

    group: str
    name: str
    what: str
    needs: Change

    def __str__(self) -> str:
        return f"{self.needs.name.lower()}: {self.group}: {self.name} {self.what}"


def differences(before: Mapping[str, Items], now: Mapping[str, Items]) -> list[Difference]:
    """Return the differences between two surfaces, those that need most first.

    A removed or changed name needs a major version, an added one a minor version. A required part
    of a request that existed needs a major version, and a wider range a minor one. A text needs a
    patch. The parts of a name that is itself added or removed are not listed.
    """
    found = [
        one
        for group in sorted({*before, *now})
        for one in _group(group, before.get(group, {}), now.get(group, {}))
    ]
    return sorted(found, key=lambda one: -one.needs)


def _group(group: str, before: Items, now: Items) -> Iterator[Difference]:
    for name in sorted({*before, *now}):
        if name not in now:
            if not _has_parent(name, before.keys() - now.keys()):
                yield Difference(group, name, "was removed", Change.MAJOR)
        elif name not in before:
            if not _has_parent(name, now.keys() - before.keys()):
                needed = bool(now[name].get("required")) and _is_given(name)
                yield Difference(
                    group,
                    name,
                    "was added and is required" if needed else "was added",
                    Change.MAJOR if needed and _has_parent(name, before.keys()) else Change.MINOR,
                )
        else:
            yield from _changed(group, name, before[name], now[name])


def _has_parent(name: str, names: Set[str]) -> bool:
    """Return True if `name` is a part of one of `names`."""
    return any(name[at] in " ." and name[:at] in names for at in range(1, len(name)))


def _is_given(name: str) -> bool:
    """Return True if callers and operators write this; False for a part of an answer."""
    return " > " not in name


def _changed(group: str, name: str, before: Facts, now: Facts) -> Iterator[Difference]:
    for fact in sorted({*before, *now}):
        old, new = before.get(fact), now.get(fact)
        if old == new:
            continue
        if fact == "text":
            yield Difference(group, name, "has another text", Change.PATCH)
            continue
        wider = _is_given(name) and _is_wider(fact, old, new)
        yield Difference(
            group,
            name,
            f"has another {fact}: {_shown(old)} became {_shown(new)}",
            Change.MINOR if wider else Change.MAJOR,
        )


def _is_wider(fact: str, old: object, new: object) -> bool:
    """Return True if all that was accepted still is; `None` is a fact that is not stated."""
    match fact, old, new:
        case "required", True, False:
            return True
        case (("minimum" | "minItems"), int() | float(), int() | float()):
            return new < old
        case (("maximum" | "maxItems"), int() | float(), int() | float()):
            return new > old
        case (("kinds" | "choices"), list(), list()):
            return set(map(str, new)) > set(map(str, old))
        case (("minimum" | "maximum" | "minItems" | "maxItems" | "choices" | "pattern"), _, None):
            return True
        case "kind", ("file" | "directory"), "path":
            return True
        case "default", None, _:
            return True
    return False


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
