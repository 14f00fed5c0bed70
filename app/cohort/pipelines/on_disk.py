"""Check of pipelines against the files of their models, without loading or serving them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from itertools import pairwise

from cohort.errors import LoadFailed, ModelNotFound, VersionNotFound, quoted
from cohort.pipelines.factory import STATE_IN_STEP, asked_by_pipeline, read_pipeline
from cohort.pipelines.graph import Graph
from cohort.pipelines.wiring import MAX_DEPTH, MemberFacts, Wiring, connect
from cohort.processing import Asked, asked_by_config, make_processing
from cohort.registry import Source
from cohort.repository import (
    PIPELINE_FILE,
    Found,
    FoundModel,
    ModelConfig,
    ProcessingConfig,
    Snapshot,
    is_model_file,
)
from cohort.session import Signature, read_signature


class NotDeclared(Exception):
    """A model whose files do not declare its inputs and outputs; the message names the model."""


def check_pipeline(found: Found, snapshot: Snapshot, model: str = "") -> Wiring:
    """Connect a pipeline with the models on disk, and build its input and output processing.

    found: The version of the pipeline.
    snapshot: The models on disk.
    model: The pipeline's name, used to find its config; default "": it has no config.

    Raises LoadFailed, OSError, and NotDeclared if a step's model has a transform.
    """
    return _check(found, snapshot, model, ())[0]


def _check(
    found: Found, snapshot: Snapshot, model: str, around: tuple[Found, ...]
) -> tuple[Wiring, Signature]:
    """Return the wiring, and the inputs and outputs that clients see."""
    pipeline, graph = read_pipeline(found.path)
    if found in around:
        raise LoadFailed("it needs itself")
    if len(around) >= MAX_DEPTH:
        raise LoadFailed(f"pipelines are nested more than {MAX_DEPTH} deep")
    there = snapshot.models.get(model)
    config = None if there is None else there.config
    asked = asked_by_pipeline(Source(found.path, found.stamp, config, model=model))
    inside = (*around, found)
    wiring = connect(pipeline, lambda name, number: _facts(name, number, snapshot, inside), graph)
    return wiring, _processed(found, Signature(wiring.inputs, wiring.outputs), asked)


def _processed(found: Found, signature: Signature, asked: Asked | None) -> Signature:
    """Return the signature after the requested processing. Raises LoadFailed."""
    if asked is None:
        return signature
    made = make_processing(asked, signature, found.folder, {})
    made.close()
    return Signature(made.inputs, made.outputs, made.optional)


def facts_on_disk(model: str, snapshot: Snapshot) -> MemberFacts:
    """Return the facts of a model from its files. Raises as `check_pipeline` does."""
    return _facts(model, None, snapshot, ())


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
    found, config = there.versions[number], there.config or ModelConfig()
    if config.transform is not None:
        raise NotDeclared(f"model {quoted(model)} has a transform, which only a server runs")
    if not is_model_file(found.path.name):
        try:
            wiring, signature = _check(found, snapshot, model, around)
        except LoadFailed as error:
            raise LoadFailed(f"pipeline {quoted(model)}: {error}") from error
        inputs, outputs = signature.inputs, signature.outputs
        return MemberFacts(inputs, signature.optional, outputs, wiring.splits, wiring.depth)
    if config.state:
        raise LoadFailed(f"model {quoted(model)} {STATE_IN_STEP}")
    signature = _as_callers_see(there, found, config)
    return MemberFacts(signature.inputs, signature.optional, signature.outputs)


def _as_callers_see(model: FoundModel, found: Found, config: ModelConfig) -> Signature:
    """Return a model's signature after its config's input processing. Raises LoadFailed."""
    signature = read_signature(found.path)
    if signature is None:
        raise LoadFailed(f"the inputs of model {quoted(model.name)} cannot be read from its file")
    asked = asked_by_config(Source(found.path, found.stamp, config, model=model.name))
    if asked is None or not config.inputs:
        return signature  # output processing changes neither datatypes nor shapes
    return _processed(found, signature, asked._replace(config=ProcessingConfig(config.inputs, {})))


def members_named(snapshot: Snapshot) -> Mapping[str, Set[int]]:
    """Return the versions, by model, that steps of pipelines on disk name."""
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
    """Return warnings about valid pipelines that may not do what the operator intended."""
    notes = [f"step {quoted(name)} does not run: no output needs it" for name in graph.unused]
    for output, sources in graph.outputs.items():
        steps = [graph.steps.get(graph.places[one].step) for one in sources]
        if all(step is not None and step.condition is not None and not step.each for step in steps):
            notes.append(
                f"output {quoted(output)} fails where no step runs that it is from; add one "
                "without a condition to its from, unless their conditions leave nothing out"
            )
    return [*notes, *_shadowed(graph)]


def _shadowed(graph: Graph) -> Iterator[str]:
    """Yield a warning for each list with tensors after one that is available for every row."""
    full = {""}  # steps that run for all rows, and the inputs
    lists = [(f"output {quoted(name)}", sources) for name, sources in graph.outputs.items()]
    for step in graph.steps.values():
        named = step.sources.items()
        lists += [(f"step {quoted(step.name)}: input {quoted(one)}", some) for one, some in named]
        comes = [any(graph.places[one].step in full for one in some) for _, some in named]
        if step.condition is None and not step.each and all(comes):
            full.add(step.name)
    for where, sources in lists:
        for first, later in pairwise(sources):
            if graph.places[first].step in full:
                yield f"{where} is never from {later}: {first} before it is there for every row"
                break
