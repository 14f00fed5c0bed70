"""Whether a run's cost depends on the values of its inputs, not only on their shapes.

What a profile measured holds for all inputs of a shape, unless a value decides how much there is to
do: the trip count of a Loop, the size that Expand gets. The nodes are followed from the graph's
inputs. What they compute depends on values; what `Shape` gives does not, nor do initializers and
constants. A model is dependent where something that depends on values decides a shape, a branch or
a trip count. Otherwise all shapes follow from the inputs' shapes, and so does the cost.

What is not known counts as dependent: operators of other domains, names without a definition,
values that a Loop or Scan carries on. Each node is visited once; the calls of a model's own
functions use what was found for the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.errors import quoted
from app.session.graphs import FunctionName, Graph, ModelGraphs, Node

KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})

DECIDING_INPUTS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BifurcationDetector": (0, 1, 2, 3),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantFill": (0,),
    "ConstantOfShape": (0,),
    "ConvTransposeWithDynamicPads": (2,),
    "CropAndResize": (3,),
    "DFT": (1, 2),
    "DecoderMaskedMultiHeadAttention": (6,),
    "DecoderMaskedSelfAttention": (5,),
    "DynamicSlice": (1, 2, 3),
    "Expand": (1,),
    "ExpandDims": (1,),
    "GRU": (4,),
    "GivenTensorFill": (0,),
    "GroupQueryAttention": (5, 6),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "ImageDecoder": (0,),
    "LSTM": (4,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "RemovePadding": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "StringNormalizer": (0,),
    "StringSplit": (0,),
    "Tile": (1, 2),
    "Tokenizer": (0,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""The positions of inputs whose values decide a shape, a branch, a trip count or a length."""

SEARCHES = frozenset({"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"})
"""Operators that run a model of their own until its outputs say that they are done."""

OF_SHAPES = frozenset({"Shape", "Size", "SequenceLength"})
"""Operators whose outputs do not depend on values."""

WITH_GRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})

# A set of a function's inputs, as bits. A graph's inputs are all UNKNOWN; 0 depends on no value.
_SHARED = 61  # the bit of all further inputs
_UNKNOWN = 1 << 62


class _Effect(NamedTuple):
    """What was found for a function or a node.

    decided: The inputs by whose values something is decided.
    reason: Where one is.
    outputs: For each output, the inputs that it depends on.
    """

    decided: int
    reason: str
    outputs: Sequence[int]


def find_dependence(model: ModelGraphs) -> str:
    """Say which operator's cost depends on input values; "" for none."""
    walk = _Walk()
    for name, body in model.functions.items():
        bits = {one: 1 << min(place, _SHARED) for place, one in enumerate(body.inputs)}
        walk.effects[name] = walk.graph(body, [bits])
    main = model.main
    inputs = dict.fromkeys(set(main.inputs).difference(main.constants), _UNKNOWN)
    return walk.graph(main, [inputs]).reason


class _Walk:
    """Follows values through the nodes. `effects` are those of the functions walked so far."""

    def __init__(self) -> None:
        self.effects: dict[FunctionName, _Effect] = {}

    def graph(self, graph: Graph, scopes: list[dict[str, int]]) -> _Effect:
        """Walk the nodes of a graph. The last of `scopes` is its own and holds its inputs."""
        names = scopes[-1]
        for node in graph.nodes:  # what is used before it is computed is not known
            names.update(dict.fromkeys(node.outputs, _UNKNOWN))
        for name in graph.constants:
            names.setdefault(name, 0)
        names[""] = 0  # an input that is left out
        decided, reason = 0, ""
        for node in graph.nodes:
            found = self._node(node, scopes)
            decided |= found.decided
            reason = reason or found.reason
            names.update(zip(node.outputs, found.outputs, strict=True))
            names[""] = 0
        return _Effect(decided, reason, [_look_up(name, scopes) for name in graph.outputs])

    def _node(self, node: Node, scopes: list[dict[str, int]]) -> _Effect:
        domain, operator, _ = node.function
        given = [_look_up(name, scopes) for name in node.inputs]
        of_all = 0
        for mask in given:
            of_all |= mask
        effect = self.effects.get(node.function)
        if effect is not None and not node.graphs and domain not in KNOWN_DOMAINS:
            outputs = [_resolve(mask, given) for mask in effect.outputs[: len(node.outputs)]]
            outputs += [_UNKNOWN] * (len(node.outputs) - len(outputs))
            decided = _resolve(effect.decided, given)
            return _Effect(decided, effect.reason if decided else "", outputs)
        if effect is not None or domain not in KNOWN_DOMAINS or operator in SEARCHES:
            name = quoted(f"{domain}.{operator}".lstrip("."))
            return _unknown(node, f"what {name} does may depend on input values")
        if bool(node.graphs) != (operator in WITH_GRAPHS):
            return _unknown(node, f"the graph of {quoted(operator)} is not where it should be")
        if operator == "Loop" and not (node.inputs and node.inputs[0]):
            return _unknown(node, "a Loop has no trip count")
        decided = 0
        for position in DECIDING_INPUTS.get(operator, ()):
            decided |= given[position] if position < len(given) else 0
        reason = f"what {operator} does depends on input values" if decided else ""
        if node.graphs:
            return self._graphs(node, given, scopes, decided, reason)
        mask = 0 if operator in OF_SHAPES else of_all
        return _Effect(decided, reason, [mask] * len(node.outputs))

    def _graphs(
        self,
        node: Node,
        given: Sequence[int],
        scopes: list[dict[str, int]],
        decided: int,
        reason: str,
    ) -> _Effect:
        operator = node.function[1]
        outputs = [0 if operator == "If" else _UNKNOWN] * len(node.outputs)
        for graph in node.graphs:
            names = dict.fromkeys(graph.inputs, _UNKNOWN)
            if operator == "Loop":  # its number and its condition; the rest is carried on
                names.update(dict.fromkeys(graph.inputs[:2], decided))
            found = self.graph(graph, [*scopes, names])
            decided |= found.decided
            reason = reason or found.reason
            if operator == "Loop" and (ends := found.outputs[0] if found.outputs else _UNKNOWN):
                decided |= ends
                reason = reason or "when Loop ends depends on input values"
            if operator == "If":
                masks = [*found.outputs, *[_UNKNOWN] * len(outputs)]
                outputs = [one | masks[place] | given[0] for place, one in enumerate(outputs)]
        return _Effect(decided, reason, outputs)


def _unknown(node: Node, reason: str) -> _Effect:
    return _Effect(_UNKNOWN, reason, [_UNKNOWN] * len(node.outputs))


def _look_up(name: str, scopes: list[dict[str, int]]) -> int:
    for names in reversed(scopes):
        if name in names:
            return names[name]
    return _UNKNOWN


def _resolve(mask: int, given: Sequence[int]) -> int:
    """Replace the inputs of a function in `mask` by what a call gives for them."""
    found = mask & _UNKNOWN
    if mask == found:
        return found
    for place, one in enumerate(given):
        if mask >> min(place, _SHARED) & 1:
            found |= one
    return found
