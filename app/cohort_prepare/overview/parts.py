"""What an ONNX model is made of, and what becomes of it: the parts of an overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.session import AssignedNode
from cohort_prepare.steps import StepRecord

MAX_TEXT = 256
"""Characters kept of a name or a text in the model, which may have any number."""

MAX_LISTED = 1000
"""Inputs, outputs, operators and properties that are listed; the rest is counted."""

MAX_ASSIGNED = 10_000
"""Nodes that are listed with their provider."""

ValueShape = Sequence[int | str | None] | None


@dataclass(frozen=True, slots=True)
class ModelValue:
    """An input or output.

    datatype: The Open Inference name, or ONNX's own words for what is no tensor.
    shape: A length, a symbol, or None for each dimension; None: the rank is not known.
    optional: Whether the model has a default for it.
    """

    name: str
    datatype: str
    shape: ValueShape
    optional: bool = False


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """How often an operator is used, counting subgraphs, and the bodies of functions once.

    since: The opset in which its definition came, of those that the model may use; 0: not known.
    """

    domain: str
    operator: str
    count: int
    since: int = 0


@dataclass(frozen=True, slots=True)
class WeightType:
    """The weights of one datatype: tensors, their elements, and the bytes these take."""

    datatype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight. `kept`: "inside" the file, "outside" it, or "sparse"."""

    name: str
    datatype: str
    shape: Sequence[int]
    bytes: int
    kept: str = "inside"


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """All weights: by datatype, and the largest of them."""

    elements: int
    bytes: int
    datatypes: Sequence[WeightType] = ()
    largest: Sequence[Weight] = ()
    sparse: int = 0
    external: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The floating-point operations of all nodes of an operator."""

    operator: str
    nodes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Nodes that are left out of the operations, and why."""

    operator: str
    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of a run; a multiplication and an addition are two.

    batch: Rows of the run.
    dimensions: The lengths that other open dimensions were given.
    open: Open dimensions that were given none.
    notes: What was assumed.
    """

    total: int
    batch: int
    dimensions: Mapping[str, int] = field(default_factory=dict)
    open: Sequence[str] = ()
    operators: Sequence[OperatorCost] = ()
    uncounted: Sequence[Uncounted] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """Nodes of the main graph, those of subgraphs, of functions, and how deep graphs nest."""

    name: str
    nodes: int
    subgraph_nodes: int = 0
    subgraphs: int = 0
    depth: int = 0
    functions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelStructure:
    """What is in the model's files."""

    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    producer_version: str
    domain: str
    description: str
    graph: GraphSummary
    inputs: Sequence[ModelValue]
    outputs: Sequence[ModelValue]
    operators: Sequence[OperatorUse]
    parameters: ModelParameters
    flops: Flops
    metadata: Mapping[str, str]
    history: Sequence[StepRecord]
    drawn: str = ""


@dataclass(frozen=True, slots=True)
class ChainOutcome:
    """What became of the model on one provider chain.

    problem: Why it does not run there; "" where it does.
    nodes: Nodes by provider, before those are fused that a provider fuses.
    assigned: The same, one by one.
    """

    chain: Sequence[str]
    problem: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    assigned: Sequence[AssignedNode] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server does with the model.

    chain: The provider chain where its config names none.
    batched: Whether requests may share a run.
    reason: Why not.
    checked: Whether rows were seen not to influence each other; else the description alone says it.
    rows: What the graph proves of rows, as in the description of a version; empty: not opened.
    row_places: Where the rows of inputs and outputs are that are not along axis 0, a sentence each.
    advice: What to do to have requests share runs; "" where the graph is no reason against it.
    open_dimensions: Dimensions of inputs, other than the rows, that requests may choose.
    unpredictable: Why the cost of a run depends on values; "": it does not.
    unsent: Outputs that cannot be sent, each with its type.
    problem: Why a server would not open it; "": it would.
    """

    chain: Sequence[str] = ()
    batched: bool = False
    reason: str = ""
    checked: bool = False
    rows: Mapping[str, Any] = field(default_factory=dict)
    row_places: Sequence[str] = ()
    advice: str = ""
    open_dimensions: Sequence[str] = ()
    unpredictable: str = ""
    unsent: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Behavior:
    """What becomes of the model here: on each provider chain, and in a server."""

    chains: Sequence[ChainOutcome] = ()
    serving: Serving = Serving()


def clip(text: str) -> str:
    """The text, or its beginning where it is long."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
