"""Merges the reports of several workers into one answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.operating.description import Description
from cohort.registry import RESTING, State

WORST_FIRST = (State.UNAVAILABLE, State.LOADING, State.UNLOADING, State.READY)
"""Order of states: a merged version has its least advanced state in any worker."""

HealthReport = Mapping[str, Any]
"""A worker's health: `place`, `pid`, `ready`, `reason`, `settled`, `problems`, and `states`.

`states` has, by model and version, the state and its reason.
"""


def merge_health(
    own: Description, others: Sequence[HealthReport], silent: Sequence[int], *, whole: bool
) -> Description:
    """Merge a worker's summary with the differences in `others`.

    silent: The processes that did not answer.
    whole: True if the caller may read the problems of all, and not only states.
    """
    settled = [one for one in others if one["settled"]] or list(others)
    models = {
        name: {
            version: _worst(name, version, state, settled)[0] for version, state in states.items()
        }
        for name, states in own["models"].items()
    }
    merged = {**own, "models": models}
    if not whole:
        return merged
    problems = list(own["problems"])
    for one in others:
        problems += [
            f"worker {one['place']}: {problem}"
            for problem in one["problems"]
            if problem not in own["problems"]
        ]
    problems += [f"process {pid} does not answer" for pid in silent]
    merged["problems"] = problems
    if problems and own["status"] == "healthy":
        merged["status"] = "degraded"
    merged["workers"] = [
        {key: one[key] for key in ("place", "pid", "ready", "reason")} for one in others
    ]
    return merged


def merge_models(own: Description, others: Sequence[HealthReport]) -> Description:
    """Return the models of a worker, with the states of versions in `others` where worse."""
    settled = [one for one in others if one["settled"]]
    return {
        "models": [
            {
                **model,
                "versions": [
                    _merged_version(model["name"], one, settled) for one in model["versions"]
                ],
            }
            for model in own["models"]
        ]
    }


def _merged_version(
    model: str, version: Description, others: Sequence[HealthReport]
) -> Description:
    state, reason = _worst(model, version["version"], version["state"], others)
    return version if state == version["state"] else {**version, "state": state, "reason": reason}


def _worst(model: str, version: str, state: str, others: Sequence[HealthReport]) -> tuple[str, str]:
    """Return the least advanced state of a version, and its reason."""
    found = [(State(state), "")]
    for one in others:
        there = one["states"].get(model, {}).get(version)
        if there is not None and there[1] != RESTING:
            found.append((State(there[0]), f"worker {one['place']}: {there[1]}"))
    worst, reason = min(found, key=lambda one: WORST_FIRST.index(one[0]))
    return worst.value, reason
