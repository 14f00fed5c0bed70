"""Progress of a request through a pipeline: available tensors and finished steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.pipelines.deciding import Given
from cohort.pipelines.graph import GraphStep
from cohort.pipelines.rows import Part
from cohort.pipelines.wiring import Wiring
from cohort.tensors import Arrays

OUTPUTS = ""
"""The name that stands for the outputs in the list of waiting steps."""


class Progress:
    """Available tensors and finished steps of one request.

    parts: The available tensors that are still needed.
    waiting: The steps that have not begun, and OUTPUTS, in order.
    over: The steps that have ended or will not run.
    total: The rows of the request; -1 if steps take the request as a whole.

    wiring: The pipeline.
    inputs: The arrays by name.
    """

    __slots__ = ("_each", "_graph", "_uses", "over", "parts", "total", "waiting")

    def __init__(self, wiring: Wiring, inputs: Arrays) -> None:
        graph = self._graph = wiring.graph
        self._each = wiring.each
        self._uses = dict(graph.uses)
        self.total = len(inputs[graph.inputs[0]]) if wiring.splits else -1
        self.parts: dict[str, Part] = {
            name: Part(array) for name, array in inputs.items() if name in graph.uses
        }
        self.waiting = dict.fromkeys((*graph.steps, OUTPUTS))
        self.over: set[str] = set()

    def is_needed(self, tensor: str) -> bool:
        """Return True if a step or an output still needs a tensor."""
        return self._uses.get(tensor, 0) > 0

    def is_ready(self, name: str) -> bool:
        """Return True if every tensor that a step needs is available or will never be."""
        graph = self._graph
        plain = graph.steps[name].plain if name else ()
        if plain and all([tensor in self.parts for _, tensor in plain]):  # noqa: C419 - faster
            return True
        sources = graph.steps[name].sources if name else graph.outputs
        for tensors in sources.values():
            for tensor in tensors:
                part = self.parts.get(tensor)
                if part is not None and part.rows is None:
                    break  # later tensors are not used
                if part is None and self._may_come(tensor):
                    return False
        condition = graph.steps[name].condition if name else None
        if condition is None:
            return True
        return not any(self._may_come(one) for one in condition.tensors)

    def _may_come(self, tensor: str) -> bool:
        return tensor not in self.parts and self._graph.places[tensor].step not in self.over

    def given(self, sources: Mapping[str, tuple[str, ...]], step: GraphStep | None) -> Given | None:
        """Collect the available tensors of a step; None if a required one will never come."""
        parts = self.parts
        there: dict[str, list[Part]] = {}
        for name, tensors in sources.items():
            found = [parts[one] for one in tensors if one in parts]
            if not found:
                return None
            there[name] = found
        condition = None if step is None else step.condition
        looked_at: dict[str, Part] = {}
        for one in () if condition is None else condition.tensors:
            if one not in parts:
                return None
            looked_at[one] = parts[one]
        each = None if step is None else self._each.get(step.name)
        return Given(there, looked_at, condition, self.total, each)

    def still_needs(self, name: str, step: str) -> bool:
        """Return True if a waiting step, or the outputs, may need a tensor of another step."""
        graph = self._graph
        for tensors in (graph.steps[name].sources if name else graph.outputs).values():
            for tensor in tensors:
                if graph.places[tensor].step == step:
                    return True
                part = self.parts.get(tensor)
                if part is not None and part.rows is None:
                    break
        condition = graph.steps[name].condition if name else None
        looks_at = () if condition is None else condition.tensors
        return any(graph.places[one].step == step for one in looks_at)

    def release(self, tensors: Sequence[str]) -> None:
        """Count down the uses of tensors, and drop unused ones."""
        uses = self._uses
        for tensor in tensors:
            uses[tensor] -= 1
            if not uses[tensor]:
                self.parts.pop(tensor, None)
