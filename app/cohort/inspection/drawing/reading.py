"""Read the data for a model's drawing from its protobuf.

The field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from cohort.errors import shortened
from cohort.inspection.drawing.attributes import Attribute, read_attribute
from cohort.inspection.drawing.blocks import find_blocks
from cohort.inspection.drawing.words import (
    MAX_WORDS,
    describe_sparse,
    describe_tensor,
    describe_value,
    read_texts,
)
from cohort.model_file.protobuf import FileSlice, MessageBytes, decode_text, fields

MAX_DRAWN = 12_000
"""Maximum number of nodes drawn in one graph; the first nodes are drawn."""

MAX_GRAPHS = 200
"""Maximum number of subgraphs and functions that can be opened."""

MAX_ALL_DRAWN = 30_000
"""Maximum number of nodes drawn in all graphs together."""

MAX_WEIGHTS = 50_000
"""Maximum number of weights listed for one graph."""

MAX_LETTERS = 8_000_000
"""Maximum length of all text about nodes and values together."""

LETTERS_PER_LINK = 50
"""Letters charged for each input or output of a node, because browsers draw a line for it."""

SHOWN_ATTRIBUTES = 100
"""Maximum number of attributes shown for a node."""

Jsonable = dict[str, Any]


class DrawnModel(NamedTuple):
    """The main graph of a model, followed by the subgraphs and functions that can be opened.

    graphs: Each graph has a `title`, `inputs`, `outputs`, `nodes`, `weights` (the types of
        constants), `values` (names and types) and `blocks` (from `find_blocks`). Other fields refer
        to a value by its index in `values`. A node's `at` is its index in the file's graph, which
        also counts constants.
    left_out: A description of the parts that were omitted for lack of room; "" if complete.
    """

    graphs: list[Jsonable]
    left_out: str


def draw_model(
    path: Path, providers: Mapping[str, str], types: Mapping[str, str] | None = None
) -> DrawnModel:
    """Read the model at `path`.

    providers: The known execution providers of nodes of the main graph, by node name.
    types: Datatypes and shapes of values of the main graph, by name. They override the file's
        types. Empty by default.

    Raises OSError, and ValueError if the file is not the protobuf of a model.
    """
    with path.open("rb") as file:
        model = FileSlice(file, 0, path.stat().st_size)
        drawer = _Drawer(providers, types or {})
        return DrawnModel(drawer.draw_all(model), drawer.left_out)


class _Waiting(NamedTuple):
    """A graph that is not drawn yet, with the consecutive parts of its message."""

    title: str
    parts: Sequence[MessageBytes]
    is_function: bool = False


class _Numbers:
    """Numbers that stand for names, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)


class _Drawer:
    """Converts each graph to JSON once, within the limits."""

    def __init__(self, providers: Mapping[str, str], types: Mapping[str, str]) -> None:
        self._providers, self._types = providers, types
        self._waiting: list[_Waiting] = []
        self._functions: dict[tuple[str, str], int] = {}
        self._room, self._letters = MAX_ALL_DRAWN, MAX_LETTERS
        self._missing_graphs = self._missing_nodes = 0

    def draw_all(self, model: MessageBytes) -> list[Jsonable]:
        main: list[MessageBytes] = []
        self._waiting.append(_Waiting("graph", main))
        for number, value in fields(model):
            if isinstance(value, int):
                continue
            if number == 7:  # protobuf merges the parts of a repeated message
                main.append(value)
            elif number == 25:
                texts = read_texts(value, {1, 10})
                place = self._later(f"function {shortened(texts[1], MAX_WORDS)}", value, True)
                if place is not None:
                    self._functions[texts[10], texts[1]] = place
        return [self._graph(one) for one in self._growing()]

    def _growing(self) -> Iterator[_Waiting]:
        place = 0
        while place < len(self._waiting):
            yield self._waiting[place]
            place += 1

    @property
    def left_out(self) -> str:
        parts = []
        if self._missing_nodes:
            parts.append(f"{self._missing_nodes:,} nodes after the first ones of their graph")
        if self._missing_graphs:
            parts.append(f"{self._missing_graphs:,} subgraphs or functions")
        return f"not drawn: {', '.join(parts)}" if parts else ""

    def _later(self, title: str, graph: MessageBytes, is_function: bool = False) -> int | None:
        if len(self._waiting) > MAX_GRAPHS:
            self._missing_graphs += 1
            return None
        self._waiting.append(_Waiting(title, [graph], is_function))
        return len(self._waiting) - 1

    def _graph(self, waiting: _Waiting) -> Jsonable:
        names = _Numbers()
        found = _GraphParts([], [], [], {}, {})
        at = -1
        kinds = _IN_FUNCTION if waiting.is_function else _IN_GRAPH
        for number, value in chain.from_iterable(map(fields, waiting.parts)):
            kind = kinds.get(number)
            if kind is None or isinstance(value, int):
                continue
            if kind == "node":
                self._node(value, at := at + 1, names, found)
            elif kind in _WEIGHTS:
                name, described = _WEIGHTS[kind](value)
                if len(found.weights) < MAX_WEIGHTS:
                    shown = self._text(described) if self._letters > 0 else "…"
                    found.weights[names.of(name)] = shown
            else:
                whole = kind == "type" or not waiting.is_function  # otherwise only the name
                name, described = describe_value(value) if whole else (decode_text(value), "")
                if described:
                    found.types[name] = described
                ends = {"input": found.inputs, "output": found.outputs}.get(kind)
                if ends is not None and len(ends) < MAX_DRAWN:
                    ends.append(names.of(name))
        if waiting is self._waiting[0]:
            found.types.update(self._types)
        return {
            "title": waiting.title,
            "inputs": [one for one in found.inputs if one not in found.weights],
            "outputs": found.outputs,
            "nodes": found.nodes,
            "weights": found.weights,
            "blocks": find_blocks([one["op"] for one in found.nodes]),
            "values": [self._value(name, found.types) for name in names],
        }

    def _node(self, message: MessageBytes, at: int, names: _Numbers, found: _GraphParts) -> None:
        """Add a node; add a Constant node as weights instead."""
        if len(found.nodes) >= MAX_DRAWN or self._room <= 0 or self._letters <= 0:
            self._missing_nodes += 1
            return
        texts = {3: "", 4: "", 7: ""}
        inputs: list[int] = []
        outputs: list[int] = []
        attributes: list[tuple[str, str]] = []
        graphs: list[int] = []
        constant = ""
        for number, value in fields(message):
            if isinstance(value, int):
                continue
            if number in (1, 2):
                values = inputs if number == 1 else outputs
                if len(values) < MAX_DRAWN:
                    values.append(names.of(decode_text(value)))
            elif number in texts:
                texts[number] = decode_text(value)
            elif number == 5:
                attribute = read_attribute(value)
                constant = constant or attribute.tensor
                graphs += self._subgraphs(attribute, texts[4])
                if len(attributes) < SHOWN_ATTRIBUTES:
                    attributes.append((self._text(attribute.name), self._text(attribute.text)))
        if texts[4] == "Constant" and texts[7] in ("", "ai.onnx"):
            found.weights.update(dict.fromkeys(outputs, constant or "constant"))
            return
        self._room -= 1
        self._letters -= LETTERS_PER_LINK * (len(inputs) + len(outputs))
        called = self._functions.get((texts[7], texts[4]))
        found.nodes.append(
            {
                "at": at,
                "op": self._text(texts[4]),
                "domain": self._text(texts[7]),
                "name": self._text(texts[3]),
                "in": inputs,
                "out": outputs,
                "attributes": attributes,
                "provider": self._providers.get(texts[3], "") if texts[3] else "",
                "graphs": graphs if called is None else [*graphs, called],
            }
        )

    def _subgraphs(self, attribute: Attribute, operator: str) -> Iterator[int]:
        for graph in attribute.graphs:
            title = ": ".join(filter(None, (operator, read_texts(graph, {2})[2] or attribute.name)))
            place = self._later(shortened(title, MAX_WORDS), graph)
            if place is not None:
                yield place

    def _value(self, name: str, types: Mapping[str, str]) -> tuple[str, str]:
        """Return the value's name and type, or "…" if there is no room."""
        return (
            (self._text(name), self._text(types.get(name, ""))) if self._letters > 0 else ("…", "")
        )

    def _text(self, text: str) -> str:
        shown = shortened(text, MAX_WORDS)
        self._letters -= len(shown)
        return shown


class _GraphParts(NamedTuple):
    """The parts of a graph that were read so far."""

    nodes: list[Jsonable]
    inputs: list[int]
    outputs: list[int]
    weights: dict[int, str]
    types: dict[str, str]


_WEIGHTS = {"weight": describe_tensor, "sparse": describe_sparse}
_IN_GRAPH = {1: "node", 5: "weight", 11: "input", 12: "output", 13: "type", 15: "sparse"}
_IN_FUNCTION = {4: "input", 5: "output", 7: "node", 12: "type"}
