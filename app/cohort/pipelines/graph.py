"""The steps of a pipeline in execution order, and the source of each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from cohort.errors import LoadFailed, did_you_mean, quoted
from cohort.pipelines.conditions import Condition
from cohort.pipelines.document import Pipeline, Sources, Step

MAX_NAMED = 8
"""Maximum number of steps of a cycle that an error message names."""


class Place(NamedTuple):
    """The source of a tensor: an output of a step, or an input of the pipeline if `step` is ""."""

    step: str
    name: str


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A step and its dependencies.

    name, model, version: As in the pipeline.
    sources: The sources of each input, in the pipeline's order.
    condition: The condition for running the step; None: no condition.
    tensors: Every tensor that the step reads, repeated for each use.
    steps: The steps that produce these tensors.
    plain: Each input and its tensor, if the step has no alternatives, condition or items.
        Otherwise empty.
    each: The tensors whose items are rows of the step; empty: it runs for rows of the request.
    items: The inputs from these tensors.
    """

    name: str
    model: str
    version: int | None
    sources: Mapping[str, Sources]
    condition: Condition | None
    tensors: Sequence[str]
    steps: frozenset[str]
    plain: Sequence[tuple[str, str]]
    each: Sequence[str] = ()
    items: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Graph:
    """A pipeline with resolved tensor names.

    inputs: The names of the inputs.
    steps: The steps that an output needs, in topological order.
    outputs: The sources of each output.
    places: The source of every named tensor.
    uses: Number of references to each tensor, from needed steps and from outputs.
    consumers: The steps that read a tensor of each step; "" stands for the outputs, and is last.
    unused: Steps that no output needs; they do not run.
    alternatives: True if an input or output lists several tensors.
    """

    inputs: Sequence[str]
    steps: Mapping[str, GraphStep]
    outputs: Mapping[str, Sources]
    places: Mapping[str, Place]
    uses: Mapping[str, int]
    consumers: Mapping[str, Sequence[str]]
    unused: Sequence[str]
    alternatives: bool

    @property
    def needs(self) -> frozenset[tuple[str, int | None]]:
        """Return the models that the steps run, each with its version; None is the default one."""
        return frozenset((step.model, step.version) for step in self.steps.values())

    @property
    def conditional(self) -> bool:
        """Return True if a step has a condition on rows of the request."""
        return any(one.condition is not None and not one.each for one in self.steps.values())


def build_graph(pipeline: Pipeline) -> Graph:
    """Sort the steps. Raises LoadFailed, which names the step and its problem."""
    for name in pipeline.inputs or ():
        made_by, dot, _ = name.partition(".")
        if dot and made_by in pipeline.steps:
            raise LoadFailed(
                f"input {quoted(name)}: an output of step {quoted(made_by)} has the same name; "
                "rename the input or the step"
            )
    places = dict(_places(pipeline))
    found = {name: _step(name, step, places) for name, step in pipeline.steps.items()}
    try:
        order = list(TopologicalSorter({n: one.steps for n, one in found.items()}).static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        names = " → ".join([*map(quoted, circle[:MAX_NAMED]), "…"][: len(circle)])
        raise LoadFailed(
            f"step {quoted(circle[0])}: it depends on its own outputs, through {names}; use "
            "another source for one of these inputs"
        ) from None
    needed = {places[one].step for sources in pipeline.outputs.values() for one in sources}
    for name in reversed(order):
        if name in needed:
            needed |= found[name].steps
    steps = {name: found[name] for name in order if name in needed}
    if not steps:
        raise LoadFailed(f"no output comes from a step; {quoted(order[0])} is one")
    uses: Counter[str] = Counter()
    consumers: dict[str, list[str]] = {name: [] for name in steps}
    for step in steps.values():
        uses.update(step.tensors)
        for source in step.steps:
            consumers[source].append(step.name)
    for sources in pipeline.outputs.values():
        uses.update(sources)
    for name in steps:
        if any(places[one].step == name for some in pipeline.outputs.values() for one in some):
            consumers[name].append("")
    named = [place.name for place in places.values() if not place.step]
    inputs = list(dict.fromkeys(named) if pipeline.inputs is None else pipeline.inputs)
    for name in inputs:
        if name not in uses:
            raise LoadFailed(f"input {quoted(name)}: no step and no output uses it; remove it")
    unused = [name for name in pipeline.steps if name not in needed]
    all_sources = [*pipeline.outputs.values()]
    for step in steps.values():
        all_sources += step.sources.values()
    alternatives = any(len(sources) > 1 for sources in all_sources)
    return Graph(inputs, steps, pipeline.outputs, places, uses, consumers, unused, alternatives)


def _step(name: str, step: Step, places: Mapping[str, Place]) -> GraphStep:
    named = [one for sources in step.inputs.values() for one in sources]
    named += step.when.tensors if step.when is not None else ()
    steps = frozenset(places[one].step for one in named) - {""}
    plain: list[tuple[str, str]] = []
    if step.each is not None:
        items = _items(name, step, step.each, named)
        return GraphStep(
            name, step.model, step.version, step.inputs, step.when, named, steps, (),
            step.each, items,
        )  # fmt: skip
    if step.when is None and all(len(sources) == 1 for sources in step.inputs.values()):
        plain = [(inside, sources[0]) for inside, sources in step.inputs.items()]
    return GraphStep(name, step.model, step.version, step.inputs, step.when, named, steps, plain)


def _items(name: str, step: Step, each: Sources, named: Sequence[str]) -> frozenset[str]:
    """Return the inputs of a step that are passed item by item. Raises LoadFailed."""
    for tensor in each:
        if tensor not in named:
            raise LoadFailed(
                f"step {quoted(name)}: each has {quoted(tensor)}, which no input uses"
                f"{did_you_mean(tensor, named)}"
            )
    items = [inside for inside, sources in step.inputs.items() if not {*each}.isdisjoint(sources)]
    for inside in items:
        if left := [one for one in step.inputs[inside] if one not in each]:
            raise LoadFailed(
                f"step {quoted(name)}: input {quoted(inside)} is also from {quoted(left[0])}: add "
                "it to each, or remove it"
            )
    if not items:
        raise LoadFailed(
            f"step {quoted(name)}: each names no tensor that is the source of an input"
        )
    return frozenset(items)


def _places(pipeline: Pipeline) -> Iterator[tuple[str, Place]]:
    """Yield the source of each tensor. Raises LoadFailed if a tensor has no source."""
    for name, step in pipeline.steps.items():
        for inside, sources in step.inputs.items():
            for tensor in sources:
                where = f"step {quoted(name)}: input {quoted(inside)}"
                yield tensor, _place(tensor, pipeline, where)
        for tensor in step.when.tensors if step.when is not None else ():
            yield tensor, _place(tensor, pipeline, f"step {quoted(name)}: its condition")
    for output, sources in pipeline.outputs.items():
        for tensor in sources:
            yield tensor, _place(tensor, pipeline, f"output {quoted(output)}")


def _place(tensor: str, pipeline: Pipeline, where: str) -> Place:
    declared = pipeline.inputs
    if declared is not None and tensor in declared:
        return Place("", tensor)
    step, dot, output = tensor.partition(".")
    if dot and output and step in pipeline.steps:
        return Place(step, output)
    if tensor in pipeline.steps:
        raise LoadFailed(
            f"{where} is from {quoted(tensor)}, which is a step; write "
            f"{tensor}.OUTPUT, or rename one"
        )
    if not dot and declared is None:
        return Place("", tensor)
    if dot and output:
        hint = did_you_mean(step, pipeline.steps)
        raise LoadFailed(f"{where} is from {quoted(tensor)}: step {quoted(step)} not found{hint}")
    hint = did_you_mean(tensor, declared or ())
    raise LoadFailed(
        f"{where} is from {quoted(tensor)}, which is not an input of the pipeline{hint}; write the "
        "output of a step as step.output"
    )
