"""Wiring of a graph with its models: tensor checks, and the pipeline's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.errors import LoadFailed, did_you_mean, quoted
from cohort.pipelines.document import InputDeclaration, Pipeline, Sources
from cohort.pipelines.graph import Graph, GraphStep, build_graph
from cohort.pipelines.items import Each
from cohort.tensors import TensorSpec

MAX_DEPTH = 4
"""Maximum nesting depth of pipelines."""

Shape = tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """The properties of a model that a pipeline needs.

    inputs, optional, outputs: The specs, in the model's order.
    by_rows: True if each row of the outputs, along axis 0, depends only on the same row of the
        inputs.
    depth: The nesting depth of pipelines in it; 0 for a model.
    """

    inputs: Sequence[TensorSpec]
    optional: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    by_rows: bool = False
    depth: int = 0


LookUp = Callable[[str, int | None], MemberFacts]
"""Returns the facts of a model's version; None: the default version. Raises LoadFailed."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """A pipeline that fits its models.

    graph: The steps.
    inputs, outputs: The specs of the pipeline.
    members: The facts of each step's model.
    conditions: The unit that conditions are decided for, "rows" or "request"; "": no condition.
    depth: The nesting depth of pipelines, including this one.
    each: The items of each step that runs for items.
    """

    graph: Graph
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    members: Mapping[str, MemberFacts]
    conditions: str
    depth: int
    each: Mapping[str, Each]

    @property
    def splits(self) -> bool:
        """Return True if steps may run for only some rows of a request."""
        return self.conditions == "rows"


def connect(pipeline: Pipeline, look_up: LookUp, graph: Graph | None = None) -> Wiring:
    """Connect the steps of a pipeline with their models. Raises LoadFailed, naming the step."""
    graph = build_graph(pipeline) if graph is None else graph
    wires = _Wires(graph, pipeline.inputs or {})
    for step in graph.steps.values():
        try:
            wires.add(step, look_up(step.model, step.version))
        except LoadFailed as error:
            raise LoadFailed(f"step {quoted(step.name)}: {error}") from error
    for step in graph.steps.values():
        wires.check_condition(step)
    depth = 1 + max(one.depth for one in wires.members.values())
    if depth > MAX_DEPTH:
        raise LoadFailed(f"it has {depth} nested pipelines; the maximum is {MAX_DEPTH}")
    outputs = [wires.output(name, sources) for name, sources in graph.outputs.items()]
    inputs = [wires.tensors[name] for name in graph.inputs]
    conditions = _conditions(pipeline, graph, inputs, wires)
    if len(inputs) > 1:
        inputs = wires.symbols_apart(inputs, same_rows=conditions == "rows")
    return Wiring(graph, inputs, outputs, wires.members, conditions, depth, wires.each)


class _Wires:
    """Collector of tensor specs, step by step."""

    def __init__(self, graph: Graph, declared: Mapping[str, InputDeclaration]) -> None:
        self._graph = graph
        self._declared = declared
        self._symbols_of: dict[str, str] = {}  # the step that gave an input its symbols
        self.members: dict[str, MemberFacts] = {}
        self.each: dict[str, Each] = {}
        self.tensors: dict[str, TensorSpec] = {}
        for name, declaration in declared.items():
            if declaration.datatype is not None:
                self.tensors[name] = TensorSpec(name, declaration.datatype, declaration.shape)

    def add(self, step: GraphStep, member: MemberFacts) -> None:
        """Connect the inputs of a step. Raises LoadFailed without the step's name."""
        self.members[step.name] = member
        known = {spec.name: spec for spec in (*member.inputs, *member.optional)}
        for name in step.sources:
            if name not in known:
                hint = did_you_mean(name, known)
                raise LoadFailed(f"model {quoted(step.model)} has no input {quoted(name)}{hint}")
        for spec in member.inputs:
            if spec.name not in step.sources:
                raise LoadFailed(
                    f"input {quoted(spec.name)} of model {quoted(step.model)} is not given; set "
                    f"its source: inputs: {{{spec.name}: …}}"
                )
        lengths: Lengths = ()
        if step.each:
            lengths = self._items(step, known)
            self.each[step.name] = Each(step.each, step.items, len(lengths))
            others = lengths[:1] if len(lengths) > 1 else (None,)
            known = {
                name: _of_items(spec, lengths if name in step.items else others)
                for name, spec in known.items()
            }
        for name, sources in step.sources.items():
            for tensor in sources:
                self._connect(step.name, known[name], tensor)
        for spec in member.outputs:
            outside = _of_items(spec, lengths) if step.each else spec
            self.tensors[f"{step.name}.{spec.name}"] = outside

    def _items(self, step: GraphStep, known: Mapping[str, TensorSpec]) -> Lengths:
        """Return the lengths of the axes that a step's items are along. Raises LoadFailed."""
        found: Lengths = ("N", "items")
        for name in (one for one in step.sources if one in step.items):
            wanted = known[name].shape
            for tensor in step.sources[name]:
                shape = self._shape_of(tensor)
                if shape is None or wanted is None:
                    continue
                axes = len(shape) - len(wanted) + 1
                if axes not in (1, 2) or axes > len(shape):
                    raise LoadFailed(
                        f"input {quoted(name)} must have rows of shape {list(wanted[1:])}, but the "
                        f"items of {tensor} do not match: its shape is {list(shape)}"
                    )
                found = shape[:axes]
        return found

    def _shape_of(self, tensor: str) -> Shape:
        if self._graph.places[tensor].step:
            return self._output_of(tensor).shape
        if tensor in self.tensors:
            return self.tensors[tensor].shape
        return self._declared.get(tensor, InputDeclaration()).shape

    def _connect(self, step: str, wanted: TensorSpec, tensor: str) -> None:
        place = self._graph.places[tensor]
        if not place.step:
            self._narrow(step, wanted, tensor)
            return
        given = self._output_of(tensor)
        if why := _misfit(given, wanted):
            raise LoadFailed(
                f"input {quoted(wanted.name)} must be {wanted.datatype} {wanted.shape_text}, but "
                f"{tensor} is {given.datatype} {given.shape_text}: {why}"
            )

    def _narrow(self, step: str, wanted: TensorSpec, name: str) -> None:
        """Narrow an input of the pipeline to the values that this step accepts."""
        declaration = self._declared.get(name, InputDeclaration())
        known = self.tensors.get(name)
        if known is None:
            known = TensorSpec(name, wanted.datatype, declaration.shape)
        if why := _misfit(known, wanted):
            raise LoadFailed(
                f"input {quoted(wanted.name)} must be {wanted.datatype} {wanted.shape_text}, but "
                f"the pipeline's input {quoted(name)} is {known.datatype} {known.shape_text}, as "
                f"{self._why(name)}: {why}"
            )
        self._symbols_of.setdefault(name, step)
        shape = _narrower(known.shape, wanted.shape)
        self.tensors[name] = TensorSpec(name, wanted.datatype, shape)

    def _why(self, name: str) -> str:
        other = self._symbols_of.get(name)
        return "is written under inputs" if other is None else f"step {quoted(other)} takes it"

    def _output_of(self, tensor: str) -> TensorSpec:
        place = self._graph.places[tensor]
        if tensor not in self.tensors:
            member = self.members[place.step]
            hint = did_you_mean(place.name, [spec.name for spec in member.outputs])
            raise LoadFailed(f"step {quoted(place.step)} has no output {quoted(place.name)}{hint}")
        spec = self.tensors[tensor]
        if not spec.transportable:
            raise LoadFailed(f"{tensor} is {spec.datatype}, but only tensors can be passed on")
        return spec

    def check_condition(self, step: GraphStep) -> None:
        """Check that the condition of a step reads only numbers. Raises LoadFailed."""
        for tensor in () if step.condition is None else step.condition.tensors:
            try:
                spec = self._of(tensor)
                if spec.datatype == "BYTES":
                    raise LoadFailed(f"{tensor} is BYTES, not numbers")
            except LoadFailed as error:
                raise LoadFailed(f"step {quoted(step.name)}: its condition: {error}") from error

    def output(self, name: str, sources: Sources) -> TensorSpec:
        """Return the spec of an output of the pipeline. Raises LoadFailed."""
        try:
            specs = [self._of(tensor) for tensor in sources]
            first = specs[0]
            shape, classes = first.shape, first.classes
            for tensor, spec in zip(sources[1:], specs[1:], strict=True):
                if why := _misfit(spec, first):
                    raise LoadFailed(
                        f"{sources[0]} is {first.datatype} {first.shape_text}, and {tensor} is "
                        f"{spec.datatype} {spec.shape_text}: they are not interchangeable: "
                        f"{why}"
                    )
                shape = _wider(shape, spec.shape)
                classes = classes if spec.classes == classes else ()
        except LoadFailed as error:
            raise LoadFailed(f"output {quoted(name)}: {error}") from error
        return TensorSpec(name, first.datatype, shape, classes)

    def _of(self, tensor: str) -> TensorSpec:
        if self._graph.places[tensor].step:
            return self._output_of(tensor)
        if tensor not in self.tensors:
            declared = f"{{{tensor}: {{datatype: FP32, shape: [N]}}}}"
            raise LoadFailed(
                f"the datatype of {tensor} is unknown; write it under inputs: {declared}"
            )
        return self.tensors[tensor]

    def symbols_apart(self, inputs: Sequence[TensorSpec], *, same_rows: bool) -> list[TensorSpec]:
        """Rename symbols of inputs, so that two inputs share a symbol only if one step defines it.

        same_rows: True if all inputs have the same number of rows.
        """
        home: dict[str, str] = {}
        apart = []
        for spec in inputs:
            step = self._symbols_of.get(spec.name, "")
            shape = list(spec.shape or ())
            for axis, size in enumerate(shape):
                if axis == 0 and same_rows:
                    shape[0] = "N"
                elif isinstance(size, str) and home.setdefault(size, step) != step:
                    shape[axis] = f"{step}.{size}"
            apart.append(spec if spec.shape is None else replace(spec, shape=tuple(shape)))
        return apart


Lengths = tuple[int | str | None, ...]


def _of_items(spec: TensorSpec, lengths: Lengths) -> TensorSpec:
    """Return the spec of a tensor after its row axis becomes item axes. Raises LoadFailed."""
    if spec.shape is None:
        return spec
    if not spec.shape or not (spec.rows_vary or spec.shape[0] == 1):
        raise LoadFailed(
            f"{quoted(spec.name)} has shape {spec.shape_text}, but each needs models with rows "
            "along axis 0, of any number or 1"
        )
    return replace(spec, shape=(*lengths, *spec.shape[1:]))


def _conditions(
    pipeline: Pipeline, graph: Graph, inputs: Iterable[TensorSpec], wires: _Wires
) -> str:
    if not graph.conditional:
        return ""
    specs = [*inputs]
    for name, member in wires.members.items():
        if name in wires.each:
            specs += [wires.tensors[f"{name}.{spec.name}"] for spec in member.outputs]
        else:
            specs += [*member.inputs, *member.outputs]
    without = next((spec for spec in specs if not spec.rows_vary), None)
    if pipeline.conditions == "rows" and without is not None:
        raise LoadFailed(
            f"conditions: rows is not possible: {quoted(without.name)} has shape "
            f"{without.shape_text}, without rows along axis 0"
        )
    return pipeline.conditions or ("rows" if without is None else "request")


def _misfit(given: TensorSpec, wanted: TensorSpec) -> str:
    if given.datatype != wanted.datatype:
        return "another datatype"
    if given.shape is None or wanted.shape is None:
        return ""
    if len(given.shape) != len(wanted.shape):
        return "another number of axes"
    for axis, (one, other) in enumerate(zip(given.shape, wanted.shape, strict=True)):
        if isinstance(one, int) and isinstance(other, int) and one != other:
            return f"axis {axis} is {one} long, not {other}"
    return ""


def _narrower(known: Shape, wanted: Shape) -> Shape:
    if known is None or wanted is None:
        return known or wanted
    return tuple(
        other if one is None or (isinstance(one, str) and isinstance(other, int)) else one
        for one, other in zip(known, wanted, strict=True)
    )


def _wider(one: Shape, other: Shape) -> Shape:
    """Return a shape that covers both; a length that is open in one of them stays open."""
    if one is None or other is None:
        return None
    pairs = zip(one, other, strict=True)
    return tuple(also if isinstance(size, int) else size for size, also in pairs)
