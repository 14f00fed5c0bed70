"""Find operators whose cost depends on the values of their inputs, not only on their shapes.

A profile holds for all inputs of a shape, unless a value decides the amount of work. Examples are
the trip count of a Loop and the target shape of Expand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.errors import quoted
from cohort.model_file.graphs import Node
from cohort.row_independence.tensors import Followed, TensorSequence

KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})

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
"""Operators that run an inner model until its outputs end the search."""

OF_SHAPES = frozenset({"Shape", "Size", "SequenceLength"})
"""Operators whose outputs do not depend on values."""

WITH_GRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def deciding(
    key: tuple[str, str], node: Node, values: Sequence[Followed | None], *, redefined: bool
) -> str:
    """Return the reason why a node's cost depends on the model's input values; "" if it does not.

    key: The operator's domain and name.
    values: The node's inputs.
    redefined: True if the model defines a function of that name.
    """
    domain, operator = key
    if domain not in KNOWN_DOMAINS or operator in SEARCHES or redefined:
        return f"the run time of {quoted('.'.join(filter(None, key)))} may depend on input values"
    if bool(node.graphs) != (operator in WITH_GRAPHS):
        return f"the graph of {quoted(operator)} is not where it should be"
    if operator == "Loop" and not (node.inputs and node.inputs[0]):
        return "a Loop has no trip count"
    for place in DECIDING_INPUTS.get(operator, ()):
        if place < len(values) and depends_on_values(values[place]):
            return f"the run time of {operator} depends on input values"
    return ""


def depends_on_values(value: Followed | None) -> bool:
    """Return True if a value depends on the values of the inputs, not only on their shapes."""
    if isinstance(value, TensorSequence):
        return any(map(depends_on_values, value))
    return value is not None and value.by_values
