"""The graph of a model as one page of HTML that needs nothing else.

What a model says goes into the page as JSON in which no tag can end, and from there into text: its
names may be anything. A policy in the page lets no script run but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from app.prepare.overview.costs import subgraphs
from app.prepare.overview.parts import clip
from app.prepare.overview.reading import datatype_name, describe_type

MAX_DRAWN = 12_000
"""Nodes of one graph that are drawn: its first."""

MAX_GRAPHS = 200
"""Subgraphs and functions that can be opened."""

MAX_ALL_DRAWN = 30_000
"""Nodes of all graphs together."""

FEW = 60
"""So many nodes are drawn without folding what repeats."""

LEAST_FOLDED = 24
"""Nodes that all repetitions of a block have together, at least."""

LONGEST_BLOCK = 600
"""Nodes of a block that repeats."""

SHOWN_NUMBERS = 16
"""Of a list among a node's attributes."""

SEPARATE = frozenset("<>&\u2028\u2029")

Jsonable = dict[str, Any]


def draw(
    model: onnx.ModelProto, inferred: onnx.ModelProto, job: Mapping[str, Any], page: Path
) -> str:
    """Write the page, and say what of the graph it leaves out; "" for nothing. Raises OSError.

    inferred: The same model with the shapes of its values.
    job: Has the model's `path` and the `providers` of its nodes, by name.
    """
    types = _types(inferred.graph)
    types.update(_types_of((*model.graph.input, *model.graph.output)))
    drawer = _Drawer(model, job.get("providers", {}), types)
    graphs = drawer.draw_all()
    data = {"title": Path(job["path"]).name, "left_out": drawer.left_out, "graphs": graphs}
    page.write_text(_page(data), encoding="utf-8")
    return drawer.left_out


def _page(data: Jsonable) -> str:
    here = Path(__file__).parent
    parts = {name: (here / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    digests = {name: _source(text) for name, text in parts.items()}
    html = (here / "page.html").read_text(encoding="utf-8")
    for mark, text in (
        ("{{style-source}}", digests["css"]),
        ("{{script-source}}", digests["js"]),
        ("{{style}}", parts["css"]),
        ("{{script}}", parts["js"]),
        ("{{data}}", _embedded(data)),  # last: nothing in it is replaced
    ):
        html = html.replace(mark, text, 1)
    return html


def _source(text: str) -> str:
    """How a Content-Security-Policy names a script or style that stands in the page itself."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(data: Jsonable) -> str:
    """JSON inside a script element, which no text in it can end."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return "".join(f"\\u{ord(one):04x}" if one in SEPARATE else one for one in text)


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Datatype and shape of the values whose types are known, as people write them."""
    return _types_of((*graph.input, *graph.value_info, *graph.output))


def _types_of(values: Iterable[onnx.ValueInfoProto]) -> dict[str, str]:
    found = {}
    for value in values:
        kind, shape = describe_type(value.type)
        found[value.name] = f"{kind} {_shape(shape)}".strip()
    return found


def _shape(shape: Sequence[int | str | None] | None) -> str:
    if shape is None:
        return ""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


class _Drawer:
    """Turns graphs into JSON, each once, as far as there is room."""

    def __init__(
        self, model: onnx.ModelProto, providers: Mapping[str, str], types: Mapping[str, str]
    ) -> None:
        self._model, self._providers, self._types = model, providers, types
        self._waiting: list[tuple[str, onnx.GraphProto | onnx.FunctionProto]] = []
        self._functions: dict[tuple[str, str], int] = {}
        self._room = MAX_ALL_DRAWN
        self._missing_graphs = 0
        self._missing_nodes = 0

    def draw_all(self) -> list[Jsonable]:
        """The main graph, and after it all that can be opened from it."""
        self._waiting.append(("graph", self._model.graph))
        for function in self._model.functions:
            place = self._later(f"function {clip(function.name)}", function)
            if place is not None:
                self._functions[function.domain, function.name] = place
        return list(self._drawn())

    def _drawn(self) -> Iterator[Jsonable]:
        place = 0
        while place < len(self._waiting):  # grows meanwhile
            title, graph = self._waiting[place]
            yield self._graph(title, graph)
            place += 1

    @property
    def left_out(self) -> str:
        """What there was no room for, in words."""
        parts = []
        if self._missing_nodes:
            parts.append(f"{self._missing_nodes:,} nodes after the first ones of their graph")
        if self._missing_graphs:
            parts.append(f"{self._missing_graphs:,} subgraphs or functions")
        return f"not drawn: {', '.join(parts)}" if parts else ""

    def _later(self, title: str, graph: onnx.GraphProto | onnx.FunctionProto) -> int | None:
        if len(self._waiting) > MAX_GRAPHS:
            self._missing_graphs += 1
            return None
        self._waiting.append((title, graph))
        return len(self._waiting) - 1

    def _graph(self, title: str, graph: onnx.GraphProto | onnx.FunctionProto) -> Jsonable:
        names = _Numbers()
        nodes = [one for one in graph.node if one.op_type != "Constant"]
        drawn = nodes[: min(MAX_DRAWN, self._room)]
        self._room -= len(drawn)
        self._missing_nodes += len(nodes) - len(drawn)
        weights: dict[int, str] = {}
        if isinstance(graph, onnx.GraphProto):
            for tensor in graph.initializer[:MAX_DRAWN]:
                text = f"{datatype_name(tensor.data_type)} {_shape(tensor.dims)}"
                weights[names.of(tensor.name)] = text
        inputs = [names.of(_name(one)) for one in graph.input[:MAX_DRAWN]]
        outputs = [names.of(_name(one)) for one in graph.output[:MAX_DRAWN]]
        made = [self._node(one, names) for one in drawn]
        return {
            "title": title,
            "inputs": [one for one in inputs if one not in weights],
            "outputs": outputs,
            "nodes": made,
            "weights": weights,
            "blocks": find_blocks([one.op_type for one in drawn]),
            "values": [[clip(name), self._types.get(name, "")] for name in names],
        }

    def _node(self, node: onnx.NodeProto, names: _Numbers) -> Jsonable:
        graphs = [
            place
            for body in subgraphs(node)
            if (place := self._later(f"{clip(node.op_type)}: {clip(body.name)}", body)) is not None
        ]
        called = self._functions.get((node.domain, node.op_type))
        return {
            "op": clip(node.op_type),
            "domain": clip(node.domain),
            "name": clip(node.name),
            "in": list(map(names.of, node.input[:MAX_DRAWN])),
            "out": list(map(names.of, node.output[:MAX_DRAWN])),
            "attributes": [[clip(one.name), _attribute(one)] for one in node.attribute[:100]],
            "provider": clip(self._providers.get(node.name, "")),
            "graphs": graphs if called is None else [*graphs, called],
        }


def _name(value: onnx.ValueInfoProto | str) -> str:
    """Of an input or output, which a function has as a name alone."""
    return value if isinstance(value, str) else value.name


class _Numbers:
    """Numbers in place of names, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)


def _attribute(attribute: AttributeProto) -> str:
    match attribute.type:
        case AttributeProto.FLOAT:
            return f"{attribute.f:g}"
        case AttributeProto.INT:
            return str(attribute.i)
        case AttributeProto.STRING:
            return clip(attribute.s[:1000].decode("utf-8", "replace"))
        case AttributeProto.FLOATS:
            return _numbers([f"{one:g}" for one in attribute.floats[:SHOWN_NUMBERS]], attribute)
        case AttributeProto.INTS:
            return _numbers([str(one) for one in attribute.ints[:SHOWN_NUMBERS]], attribute)
        case AttributeProto.TENSOR:
            return f"{datatype_name(attribute.t.data_type)} {_shape(attribute.t.dims)}"
    return str(AttributeProto.AttributeType.Name(attribute.type)).lower()


def _numbers(first: Sequence[str], attribute: AttributeProto) -> str:
    count = len(attribute.ints) + len(attribute.floats)
    more = f", … ({count:,})" if count > len(first) else ""
    return f"[{', '.join(first)}{more}]"


def find_blocks(operators: Sequence[str]) -> list[tuple[int, int, int]]:
    """Find what repeats, as layers do: where it starts, its nodes, and how often it is there.

    Of sequences that repeat without a gap, the one that covers most nodes is taken first.
    """
    if len(operators) <= FEW:
        return []
    numbers = _Numbers()
    codes = np.array([numbers.of(one) for one in operators])
    found: list[tuple[int, int, int, int]] = []
    for length in range(3, min(LONGEST_BLOCK, len(codes) // 2) + 1):
        same = np.concatenate([[0], codes[:-length] == codes[length:], [0]]).astype(np.int8)
        starts, ends = (np.flatnonzero(np.diff(same) == step) for step in (1, -1))
        runs = ends - starts
        enough = runs >= max(length, LEAST_FOLDED - length)
        for start, run in zip(starts[enough], runs[enough], strict=True):
            times = int(run) // length + 1
            found.append((length * times, -length, int(start), times))
    found.sort(reverse=True)
    taken = np.zeros(len(codes), bool)
    blocks = []
    for covered, length, start, times in found:
        if not taken[start : start + covered].any():
            taken[start : start + covered] = True
            blocks.append((start, -length, times))
    return sorted(blocks)
