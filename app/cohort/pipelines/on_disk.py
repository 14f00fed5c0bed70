"""Pipelines checked against the files of their models: nothing is opened, and nothing serves."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress

from cohort.errors import LoadFailed, ModelNotFound, VersionNotFound, quoted
from cohort.pipelines.factory import read_pipeline, read_processing
from cohort.pipelines.graph import Graph
from cohort.pipelines.wiring import MAX_DEPTH, MemberFacts, Wiring, connect
from cohort.repository import MODEL_FILE, PIPELINE_FILE, Found, Snapshot
from cohort.session import read_signature


def check_pipeline(found: Found, snapshot: Snapshot) -> Wiring:
    """Connect a pipeline with the models on disk. Raises LoadFailed and OSError.

    found: Its version.
    snapshot: What is on disk.
    """
    return _check(found, snapshot, ())


def _check(found: Found, snapshot: Snapshot, around: tuple[Found, ...]) -> Wiring:
    pipeline, graph = read_pipeline(found.path)
    read_processing(found.path)
    if found in around:
        raise LoadFailed("it needs itself")
    if len(around) >= MAX_DEPTH:
        raise LoadFailed(f"more than {MAX_DEPTH} pipelines are within each other")
    inside = (*around, found)
    return connect(pipeline, lambda model, number: _facts(model, number, snapshot, inside), graph)


def _facts(
    model: str, number: int | None, snapshot: Snapshot, around: tuple[Found, ...]
) -> MemberFacts:
    there = snapshot.models.get(model)
    if there is None or not there.versions:
        raise LoadFailed(str(ModelNotFound(model, snapshot.models)))
    if number is None:
        number = max(there.versions)
    elif number not in there.versions:
        raise LoadFailed(str(VersionNotFound(model, str(number), there.versions)))
    found = there.versions[number]
    if found.path.name != MODEL_FILE:
        try:
            wiring = _check(found, snapshot, around)
        except LoadFailed as error:
            raise LoadFailed(f"pipeline {quoted(model)}: {error}") from error
        return MemberFacts(wiring.inputs, (), wiring.outputs, wiring.splits, wiring.depth)
    signature = read_signature(found.path)
    if signature is None:
        raise LoadFailed(f"the inputs of model {quoted(model)} cannot be read from its file")
    return MemberFacts(signature.inputs, signature.optional, signature.outputs)


def members_named(snapshot: Snapshot) -> Mapping[str, Set[int]]:
    """The versions, by model, that steps of pipelines on disk name."""
    named: dict[str, set[int]] = {}
    for model in snapshot.models.values():
        for found in model.versions.values():
            if found.path.name == PIPELINE_FILE:
                with suppress(LoadFailed, OSError):
                    for member, number in read_pipeline(found.path)[1].needs:
                        if number is not None:
                            named.setdefault(member, set()).add(number)
    return named


def notes_on(graph: Graph) -> list[str]:
    """What is no mistake, and may not be meant: sentences."""
    notes = [f"step {quoted(name)} does not run: no output needs it" for name in graph.unused]
    for output, sources in graph.outputs.items():
        steps = [graph.steps.get(graph.places[one].step) for one in sources]
        if all(step is not None and step.condition is not None for step in steps):
            notes.append(
                f"output {quoted(output)} fails where no step runs that it is from; add one "
                "without a condition to its from, unless their conditions leave nothing out"
            )
    return notes
