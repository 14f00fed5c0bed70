"""A node as a rule sees it, and the table of rules."""

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
"""Attributes that are yes or no. ONNX Runtime takes other numbers for either, by operator."""

Rule = Callable[["Operation"], "Sequence[Followed] | Followed"]
OperatorName = tuple[str, str]
"""Domain, "" for ONNX's own, and name."""

OPERATOR_RULES: dict[OperatorName, Rule] = {}

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Make a function the rule of operators of a domain; default: ONNX's own."""

    def put(function: Rule) -> Rule:
        for name in names:
            OPERATOR_RULES[domain, name] = function
        return function

    return put


class Follower(Protocol):
    """What a rule may ask of the walk that applies it.

    symbols: The sizes.
    cuts: Sizes that are another one, cut to a limit, with the other.
    """

    symbols: Symbols
    cuts: dict[Poly, Size]

    def graph(self, graph: Graph, given: Sequence[Followed]) -> list[Followed]:
        """The outputs of a graph inside the node, with the values of its inputs."""

    def invent_elements(self, one: Tensor) -> Elements | None:
        """A symbol for each element of a small constant, the same ones each time."""

    def lost(self, level: Loss, reason: str) -> Lost:
        """A value whose rows are lost at the present node."""

    def note_dependence(self, reason: str) -> None:
        """Keep the first reason why the cost of runs depends on what is in the inputs."""


@dataclass(slots=True)
class Operation:
    """A node with what is known of its inputs.

    name: The operator.
    version: Of its operator set.
    inputs: By position; None where one is left out.
    attributes: By name: int, float, text, a list of these, a Tensor or a Graph.
    outputs: How many outputs are asked for.
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
        """The atoms of the analysis."""
        return self.walk.symbols

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default. Raises Unproven for a flag that is neither 0 nor 1."""
        value = self.attributes.get(name, default)
        if name in FLAGS and value not in (0, 1):
            unknown(f"its {name} is {value}")
        return value

    def input(self, place: int) -> Tensor | None:
        """An input; None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def first(self) -> Tensor:
        """The first input. Raises Unproven where it is left out."""
        return self.required(0)

    def required(self, place: int) -> Tensor:
        """An input. Raises Unproven where it is left out."""
        found = self.input(place)
        return unknown(f"it has no input {place}") if found is None else found

    def present(self) -> list[Tensor]:
        """The inputs that are not left out. Raises Unproven where there are none."""
        found = [one for one in self.inputs if one is not None]
        return found or unknown("it has no inputs")

    def same(self, *places: int, what: str = "") -> None:
        """Raise Unproven unless the inputs at these places are the same for all rows."""
        for place in places:
            if (one := self.input(place)) is not None and not one.same:
                thing = what or f"its input {place}"
                mixes(f"{thing} depends on {'rows' if one.rows else 'the number of rows'}")

    def known(self, place: int, what: str) -> list[Any] | None:
        """The elements of an input that decides something, as a list.

        None where the input is left out, or is the same for all rows and not known further. Raises
        Unproven where it depends on rows.
        """
        one = self.input(place)
        if one is None:
            return None
        if one.rows:
            mixes(f"{what} depends on what is in the rows")
        found = self.elements(one)
        if found is None and one.counts:
            unknown(f"{what} follows from the number of rows in a way that is not understood")
        return None if found is None else list(found.ravel())

    def known_whole(self, place: int, what: str) -> list[Size] | None:
        """The same where each element must be a whole number; Unproven where one is not."""
        found = self.known(place, what)
        if found is not None and not all(map(is_whole, found)):
            unknown(f"{what} is not a whole number")
        return found and [int(one) if isinstance(one, float) else one for one in found]

    def known_numbers(self, place: int, what: str) -> list[int] | None:
        """The same where each must be a plain number."""
        found = self.known(place, what)
        if found is not None and not all(isinstance(one, int) for one in found):
            unknown(f"{what} is not known")
        return found

    def elements(self, one: Tensor) -> Elements | None:
        """The elements of a tensor, new symbols where those of a small constant are not known."""
        if one.elements is None and one.same and all(isinstance(size, int) for size in one.shape):
            return self.walk.invent_elements(one)
        return one.elements

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """An attribute that is an axis, counted from the front."""
        return normalized(self.attribute(name, default), rank)

    def axes(self, place: int, rank: int, name: str = "axes") -> list[int] | None:
        """Axes that are an attribute or an input, counted from the front; None where none are."""
        found = self.attributes.get(name)
        if found is None:
            found = self.known_numbers(place, "which axes it takes")
            if found is None and self.input(place) is not None:
                unknown("which axes it takes is not known")
        return None if found is None else [normalized(one, rank) for one in found]

    def is_cut_to(self, size: Poly, length: Size) -> bool:
        """Whether a size is a length cut to a limit: where the two meet, they are equal."""
        return self.walk.cuts.get(size) == length

    def graph(self, name: str) -> Graph:
        """An attribute that is a graph."""
        found = self.attributes.get(name)
        return found if isinstance(found, Graph) else unknown(f"it has no {name}")

    def sequence(self, place: int) -> list[Tensor]:
        """An input that is a sequence of tensors."""
        found = self.values[place] if place < len(self.values) else None
        if not isinstance(found, TensorSequence) or not found:
            unknown("it takes a sequence of unknown length")
        return [one if isinstance(one, Tensor) else _lost(one) for one in found]


def _lost(one: Lost) -> Tensor:
    return unknown(one.reason)


def normalized(axis: Any, rank: int) -> int:
    """An axis counted from the front. Raises Unproven where it is none of `rank` axes."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        unknown(f"axis {axis} of {rank} dimensions")
    return axis % rank
