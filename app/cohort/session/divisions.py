"""Safe replacements for integer divisions that could kill the process.

On x86 processors, dividing the minimum integer of 32 or 64 bits by -1 is a processor error: the
system kills the process (SIGFPE). ONNX Runtime 1.31 checks for a divisor of 0, but not for this
case. So a model is opened with the divisor -1 replaced by 1 if the dividend is the minimum, in
every node that may receive both. The result is that of wrapping arithmetic on other processors:
the minimum, and 0 as the remainder.

A node is unchanged if its file does not declare its number type; an inspection tries such values.
"""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from cohort.model_file.constants import ConstantTensor
from cohort.model_file.graphs import Graph, GraphReader, ModelGraphs, Node
from cohort.model_file.protobuf import MessageBytes, fields
from cohort.model_file.writing import write_field, write_parts

NodePath = tuple[int, ...]
"""The index of a node in the main graph. In a subgraph: the path of the node that contains it, the
subgraph's index in that node, and the node's index in the subgraph."""

_BITS = {6: 32, 7: 64}  # by TensorProto.DataType: types for which a division may be fatal
_INT64, _FLOAT, _BOOL = 7, 1, 9
_OLDEST_OPSET = 9  # the first opset with the operator Where
_MAIN, _BRANCHES = ("", "ai.onnx"), ("If", "Loop", "Scan")

_ALWAYS = {
    **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "NonMaxSuppression"), _INT64),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), 6),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _BOOL),
    **dict.fromkeys(("And", "Or", "Xor", "Not", "IsNaN", "IsInf"), _BOOL),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "TfIdfVectorizer"), _FLOAT),
}
"""Output types of operators whose outputs do not take their type from an input."""

_TYPED_BY = {"Where": 1, "CastLike": 1, "DequantizeLinear": 1, "OneHot": 2, "QuantizeLinear": 2}
"""The index of the input that has the type of the outputs, if it is not the first input."""

_KEEPS_SIGN = frozenset(
    {"Gather", "Slice", "Squeeze", "Unsqueeze", "Identity", "Reshape", "Flatten", "Transpose"}
    | {"Cast", "Concat", "Mul", "Add", "Max", "Expand", "Tile", "ReduceProd", "ReduceMax", "Abs"}
)
"""Operators whose output is at least 0 if their inputs are."""

_FIRST_ONLY = frozenset(
    {"Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Expand", "Tile", "ReduceProd"}
    | {"ReduceMax"}
)


class Divisions(NamedTuple):
    """The nodes of a model that may divide the least whole number by -1.

    bits: The bits of the numbers of each division that can be made safe, by its path.
    unknown: True if a division has numbers of an unknown type, is in a function, or the opset is
        too old.
    """

    bits: Mapping[NodePath, int] = MappingProxyType({})
    unknown: bool = False

    @property
    def any(self) -> bool:
        """True if the model has such a division, or may have one."""
        return bool(self.bits) or self.unknown


def find_divisions(graphs: ModelGraphs) -> Divisions:
    """Return the divisions of a model that may be fatal."""
    found: dict[NodePath, int] = {}
    bodies = [list(_all_nodes(body.nodes)) for body in graphs.functions.values()]
    unknown = any(_divides(node) for nodes in bodies for node in nodes)
    main = graphs.main
    if not any(map(_divides, _all_nodes(main.nodes))):
        return Divisions(found, unknown)
    opset = max((main.opsets.get(domain, 0) for domain in _MAIN), default=0)
    known = _Known(ChainMap(), ChainMap())
    known.follow(main, ())
    for path, bits in known.found.items():
        if bits == 0 or opset < _OLDEST_OPSET:
            unknown = True
        else:
            found[path] = bits
    return Divisions(found, unknown)


def _all_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for graph in node.graphs.values():
            yield from _all_nodes(graph.nodes)


def _divides(node: Node) -> bool:
    domain, name, _ = node.function
    if domain not in _MAIN or len(node.inputs) != 2:
        return False
    return name == "Div" or (name == "Mod" and not node.attributes.get("fmod"))


class _Known:
    """Known properties of the values of a graph and of the graphs that contain it.

    types: Numbers of TensorProto.DataType by name; 0: unknown.
    sizes: True for a value without a number below 0, by name.

    found: The bits of each division that may be fatal, by its path; 0: unknown.
    """

    def __init__(self, types: ChainMap[str, int], sizes: ChainMap[str, bool]) -> None:
        self.types, self.sizes = types, sizes
        self.found: dict[NodePath, int] = {}

    def follow(self, graph: Graph, path: NodePath) -> None:
        for name, constant in graph.constants.items():
            self.types[name], self.sizes[name] = constant.dtype, _is_size(constant)
        for one in graph.inputs:  # after constants: a constant that is also an input is a default
            self.types[one.name], self.sizes[one.name] = one.dtype, False
        declared = {one.name: one.dtype for one in graph.outputs if one.dtype}
        for place, node in enumerate(graph.nodes):
            at = (*path, place)
            if _divides(node) and not self.sizes.get(node.inputs[1], False):
                kind = self.types.get(node.inputs[0]) or self.types.get(node.inputs[1]) or 0
                if kind == 0 or kind in _BITS:
                    self.found[at] = _BITS.get(kind, 0)
            inner_types = self._follow_inner(node, at)
            size = self._is_size(node)
            for number, name in enumerate(node.outputs):
                kind = (
                    inner_types[number] if number < len(inner_types) else self._type(node, number)
                )
                self.types[name] = declared.get(name) or kind
                self.sizes[name] = size

    def _follow_inner(self, node: Node, path: NodePath) -> Sequence[int]:
        """Follow the subgraphs of a node, and return the types they give to its outputs."""
        made: list[int] = []
        for number, graph in enumerate(node.graphs.values()):
            inner = _Known(self.types.new_child(), self.sizes.new_child())
            inner.follow(graph, (*path, number))
            self.found |= inner.found
            names = graph.outputs[1:] if node.function[1] == "Loop" else graph.outputs
            made = [one.dtype or inner.types.get(one.name, 0) for one in names]
        return made

    def _type(self, node: Node, output: int) -> int:
        domain, name, _ = node.function
        if domain not in _MAIN or name in _BRANCHES:
            return 0
        given = [self.types.get(one, 0) for one in node.inputs]
        if name == "Cast":
            return _number(node, "to")
        if name in ("Constant", "ConstantOfShape"):
            return _constant_type(node)
        if name in _ALWAYS:
            return _ALWAYS[name]
        if (name == "TopK" and output == 1) or (name == "Unique" and output > 0):
            return _INT64
        at = _TYPED_BY.get(name, 0)
        return given[at] if at < len(given) else 0

    def _is_size(self, node: Node) -> bool:
        domain, name, _ = node.function
        if domain not in _MAIN:
            return False
        if name in ("Shape", "Size", "NonZero"):
            return True
        if name == "Constant":
            value = node.attributes.get("value")
            if isinstance(value, ConstantTensor):
                return _is_size(value)
            numbers = node.attributes.get("value_int", node.attributes.get("value_ints"))
            some = numbers if isinstance(numbers, list | tuple) else [numbers]
            return all(isinstance(one, int) and one >= 0 for one in some)
        given = node.inputs[:1] if name in _FIRST_ONLY else node.inputs
        return name in _KEEPS_SIGN and all(self.sizes.get(one, False) for one in given)


def _number(node: Node, attribute: str) -> int:
    value = node.attributes.get(attribute)
    return value if isinstance(value, int) else 0


def _constant_type(node: Node) -> int:
    value = node.attributes.get("value")
    if isinstance(value, ConstantTensor):
        return value.dtype
    if "value_int" in node.attributes or "value_ints" in node.attributes:
        return _INT64
    return _FLOAT  # the default of ConstantOfShape; all other attributes are not integers


def _is_size(constant: ConstantTensor) -> bool:
    elements = constant.elements
    return elements is not None and all(one >= 0 for one in elements)


def with_safe_divisions(model: MessageBytes, divisions: Divisions) -> bytes:
    """Return the model with safe divisions. Raises ValueError if it is not protobuf."""
    written: list[bytes] = []
    around = {path[:end] for path in divisions.bits for end in range(1, len(path), 2)}
    for number, value in fields(model):
        if number == 7 and not isinstance(value, int):
            written += write_parts(7, b"".join(_graph(value, divisions.bits, around, ())))
        else:
            written += write_parts(number, value)
    return b"".join(written)


def _graph(
    graph: MessageBytes, bits: Mapping[NodePath, int], around: Set[NodePath], path: NodePath
) -> Iterator[bytes]:
    """Iterate over a graph's fields; `around`: paths of nodes with a division in a subgraph."""
    place = 0
    for number, value in fields(graph):
        if number != 1 or isinstance(value, int):
            yield from write_parts(number, value)
            continue
        at = (*path, place)
        place += 1
        if at in bits:
            yield from _safe_division(value, bits[at], at)
        elif at in around:
            yield from write_parts(1, b"".join(_with_inner(value, bits, around, at)))
        else:
            yield from write_parts(1, value)


def _with_inner(
    node: MessageBytes, bits: Mapping[NodePath, int], around: Set[NodePath], path: NodePath
) -> Iterator[bytes]:
    """Iterate over the fields of a node, with the divisions in its subgraphs made safe."""
    place = 0
    for number, value in fields(node):
        held = list(fields(value)) if number == 5 and not isinstance(value, int) else []
        if not any(inner in (6, 11) for inner, _ in held):
            yield from write_parts(number, value)
            continue
        attribute: list[bytes] = []
        for inner, content in held:
            if inner in (6, 11) and not isinstance(content, int):
                safe = b"".join(_graph(content, bits, around, (*path, place)))
                attribute += write_parts(inner, safe)
                place += 1
            else:
                attribute += write_parts(inner, content)
        yield from write_parts(5, b"".join(attribute))


def _safe_division(node: MessageBytes, bits: int, path: NodePath) -> Iterator[bytes]:
    """Iterate over nodes that divide safely: by 1 instead of -1 if the dividend is the minimum."""
    dividend, divisor = GraphReader(sys.maxsize).node(node).inputs
    own = "cohort/divisor/" + "/".join(map(str, path))
    least, minus_one, one = (f"{own}/{name}" for name in ("least", "minus_one", "one"))
    yield _constant(least, -(1 << bits - 1), bits)
    yield _constant(minus_one, -1, bits)
    yield _constant(one, 1, bits)
    yield _call("Equal", [dividend, least], f"{own}/is_least")
    yield _call("Equal", [divisor, minus_one], f"{own}/is_minus_one")
    yield _call("And", [f"{own}/is_least", f"{own}/is_minus_one"], f"{own}/is_fatal")
    yield _call("Where", [f"{own}/is_fatal", one, divisor], own)
    written, seen = list[bytes](), 0
    for number, value in fields(node):
        seen += number == 1
        second = number == 1 and seen == 2
        written += write_parts(number, own.encode() if second else value)
    yield from write_parts(1, b"".join(written))


def _call(operator: str, inputs: Sequence[str], output: str, *attributes: bytes) -> bytes:
    content = [write_field(1, name.encode()) for name in inputs]
    content += [write_field(2, output.encode()), write_field(4, operator.encode()), *attributes]
    return write_field(1, b"".join(content))


def _constant(name: str, value: int, bits: int) -> bytes:
    kind = next(number for number, one in _BITS.items() if one == bits)
    raw = value.to_bytes(bits // 8, "little", signed=True)
    tensor = write_field(2, kind) + write_field(9, raw)
    attribute = write_field(1, b"value") + write_field(5, tensor) + write_field(20, 4)
    return _call("Constant", [], name, write_field(5, attribute))
