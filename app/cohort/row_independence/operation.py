"""A node with its inputs, as passed to a rule, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cohort.model_file.graphs import Graph
from cohort.row_independence.sizes import Poly, Size, Symbols, is_whole
from cohort.row_independence.tensors import (
    Elements,
    Followed,
    Loss,
    Lost,
    Tensor,
    TensorSequence,
    mixes,
    unknown,
)

FLAGS = frozenset(
    {
        *("allowzero", "ceil_mode", "channels_last", "exclusive", "inverse", "is_packed_batching"),
        *("is_test", "keepdims", "layout", "mark", "new_axis", "noop_with_empty_axes", "onesided"),
        *("reverse", "training_mode", "transA", "transB", "transBatchA", "transBatchB"),
    }
)
"""Boolean attributes. ONNX Runtime reads other numbers as true or false, by operator."""

Rule = Callable[["Operation"], "Sequence[Followed] | Followed"]
OperatorName = tuple[str, str]
"""Domain and name; the domain of ONNX itself is ""."""

OPERATOR_RULES: dict[OperatorName, Rule] = {}

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators of a domain; by default, ONNX's domain."""

    def put(function: Rule) -> Rule:
        for name in names:
            OPERATOR_RULES[domain, name] = function
        return function

    return put


class Follower(Protocol):
    """The interface of the walk that is available to a rule.

    symbols: The symbols of the analysis.
    cuts: Maps each size that was cut to a limit to the original size.
    """

    symbols: Symbols
    cuts: dict[Poly, Size]

    def graph(self, graph: Graph, given: Sequence[Followed]) -> list[Followed]:
        """Return the outputs of a subgraph of the node for these input values."""

    def invent_elements(self, one: Tensor) -> Elements | None:
        """Return a symbol for each element of a small constant, the same ones each time."""

    def lost(self, level: Loss, reason: str) -> Lost:
        """Return a value whose rows are lost at the current node."""

    def note_dependence(self, reason: str) -> None:
        """Record the reason why the cost of runs depends on input values; the first one is kept."""


@dataclass(slots=True)
class Operation:
    """A node with the known facts about its inputs.

    name: The operator.
    version: The version of its operator set.
    inputs: Inputs by position; None if an input is omitted.
    attributes: Values by name: int, float, text, a list of these, a Tensor or a Graph.
    outputs: The number of requested outputs.
    """

    name: str
    version: int
    inputs: Sequence[Tensor | None]
    attributes: Mapping[str, Any]
    outputs: int
    walk: Follower
    values: Sequence[Followed | None] = field(default=())

    @property
    def symbols(self) -> Symbols:
        """Return the symbols of the analysis."""
        return self.walk.symbols

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute or its default. Raises Unproven for a flag other than 0 or 1."""
        value = self.attributes.get(name, default)
        if name in FLAGS and value not in (0, 1):
            unknown(f"its {name} is {value}")
        return value

    def input(self, place: int) -> Tensor | None:
        """Return an input; None if it is omitted."""
        return self.inputs[place] if place < len(self.inputs) else None

    def first(self) -> Tensor:
        """Return the first input. Raises Unproven if it is omitted."""
        return self.required(0)

    def required(self, place: int) -> Tensor:
        """Return an input. Raises Unproven if it is omitted."""
        found = self.input(place)
        return unknown(f"it has no input {place}") if found is None else found

    def present(self) -> list[Tensor]:
        """Return the inputs that are not omitted. Raises Unproven if all are omitted."""
        found = [one for one in self.inputs if one is not None]
        return found or unknown("it has no inputs")

    def same(self, *places: int, what: str = "") -> None:
        """Raise Unproven unless the inputs at these positions are the same for all rows."""
        for place in places:
            if (one := self.input(place)) is not None and not one.same:
                thing = what or f"its input {place}"
                mixes(f"{thing} depends on {'rows' if one.rows else 'the number of rows'}")

    def known(self, place: int, what: str) -> list[Any] | None:
        """Return the elements of an input that controls the operator, as a list.

        Returns None if the input is omitted, or is the same for all rows but unknown. Raises
        Unproven if it depends on rows.
        """
        one = self.input(place)
        if one is None:
            return None
        if one.rows:
            mixes(f"{what} depends on the values in the rows")
        found = self.elements(one)
        if found is None and one.counts:
            unknown(f"{what} follows from the number of rows in a way that is not understood")
        return None if found is None else list(found.ravel())

    def known_whole(self, place: int, what: str) -> list[Size] | None:
        """Return the elements as `known` does. Raises Unproven unless all are integers."""
        found = self.known(place, what)
        if found is not None and not all(map(is_whole, found)):
            unknown(f"{what} is not a whole number")
        return found and [int(one) if isinstance(one, float) else one for one in found]

    def known_numbers(self, place: int, what: str) -> list[int] | None:
        """Return the elements as `known` does. Raises Unproven unless all are plain numbers."""
        found = self.known(place, what)
        if found is not None and not all(isinstance(one, int) for one in found):
            unknown(f"{what} is not known")
        return found

    def elements(self, one: Tensor) -> Elements | None:
        """Return the elements of a tensor; unknown elements of a small constant become symbols."""
        if one.elements is None and one.same and all(isinstance(size, int) for size in one.shape):
            return self.walk.invent_elements(one)
        return one.elements

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an axis attribute, counted from the front."""
        return normalized(self.attribute(name, default), rank)

    def axes(self, place: int, rank: int, name: str = "axes") -> list[int] | None:
        """Return axes from an attribute or an input, counted from the front; None if absent."""
        found = self.attributes.get(name)
        if found is None:
            found = self.known_numbers(place, "the list of axes")
            if found is None and self.input(place) is not None:
                unknown("the list of axes is not known")
        return None if found is None else [normalized(one, rank) for one in found]

    def is_cut_to(self, size: Poly, length: Size) -> bool:
        """Return True if `size` is `length` cut to a limit; two such sizes that meet are equal."""
        return self.walk.cuts.get(size) == length

    def graph(self, name: str) -> Graph:
        """Return a graph attribute. Raises Unproven if it is missing."""
        found = self.attributes.get(name)
        return found if isinstance(found, Graph) else unknown(f"it has no {name}")

    def sequence(self, place: int) -> list[Tensor]:
        """Return an input that is a sequence of tensors. Raises Unproven if it is not known."""
        found = self.values[place] if place < len(self.values) else None
        if not isinstance(found, TensorSequence) or not found:
            unknown("it takes a sequence of unknown length")
        return [one if isinstance(one, Tensor) else _lost(one) for one in found]


def _lost(one: Lost) -> Tensor:
    return unknown(one.reason)


def normalized(axis: Any, rank: int) -> int:
    """Return an axis counted from the front. Raises Unproven if it is outside `rank` axes."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        unknown(f"axis {axis} of {rank} dimensions")
    return axis % rank
