"""Parts of a model overview: its structure, and its behavior on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.session import AssignedNode
from cohort_prepare.steps import StepRecord

MAX_TEXT = 256
"""Maximum characters kept of a name or text in the model."""

MAX_LISTED = 1000
"""Maximum listed inputs, outputs, operators and properties; the rest is counted."""

MAX_ASSIGNED = 10_000
"""Maximum nodes listed with their provider."""

ValueShape = Sequence[int | str | None] | None


@dataclass(frozen=True, slots=True)
class ModelValue:
    """An input or output.

    datatype: Open Inference name, or ONNX's name for types other than tensors.
    shape: A length, a symbol or None for each dimension; None if the rank is unknown.
    optional: True if the model has a default for it.
    """

    name: str
    datatype: str
    shape: ValueShape
    optional: bool = False


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """Number of nodes of an operator, including subgraphs and function bodies (once).

    since: Opset of its definition; 0 if unknown.
    """

    domain: str
    operator: str
    count: int
    since: int = 0


@dataclass(frozen=True, slots=True)
class WeightType:
    """Weights of one datatype: number of tensors, elements and bytes."""

    datatype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight. `kept`: "inside" the file, "outside" it, or "sparse"."""

    name: str
    datatype: str
    shape: Sequence[int]
    bytes: int
    kept: str = "inside"


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """All weights by datatype, and the largest ones."""

    elements: int
    bytes: int
    datatypes: Sequence[WeightType] = ()
    largest: Sequence[Weight] = ()
    sparse: int = 0
    external: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Floating-point operations of all nodes of an operator."""

    operator: str
    nodes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Nodes that were not counted, and the reason."""

    operator: str
    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of a run; a multiply-add counts as two.

    batch: Rows of the run.
    dimensions: Given lengths of other variable dimensions.
    open: Variable dimensions without a given length.
    notes: Assumptions.
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
    """Number of nodes, subgraphs and functions of a graph, and its depth."""

    name: str
    nodes: int
    subgraph_nodes: int = 0
    subgraphs: int = 0
    depth: int = 0
    functions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelStructure:
    """Contents of the model's files."""

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
    """Result of opening the model on one provider chain.

    problem: Reason why it cannot run there; "" if it can.
    nodes: Nodes by provider, before the provider fuses any.
    assigned: The same nodes, one by one.
    """

    chain: Sequence[str]
    problem: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    assigned: Sequence[AssignedNode] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """Behavior of the model in a server.

    chain: Provider chain if its config names none.
    batched: True if requests may be batched.
    reason: Reason why not.
    checked: True if runs showed that rows are independent; False if only the graph proves it.
    rows: The graph's verdict on rows, as in a version's description; empty if not opened.
    row_places: Places of rows that are not along axis 0, one note each.
    advice: How to make requests batchable; "" if the graph does not prevent it.
    open_dimensions: Variable dimensions of inputs, except rows.
    unpredictable: Reason why run time depends on values; "" if it does not.
    unsent: Outputs that cannot be sent, with their types.
    problem: Reason why a server cannot open it; "" if it can.
    language_model: True if it is served as one; fields about rows then have no meaning.
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
    language_model: bool = False


@dataclass(frozen=True, slots=True)
class Behavior:
    """Behavior of the model here: on each provider chain, and in a server."""

    chains: Sequence[ChainOutcome] = ()
    serving: Serving = Serving()


def clip(text: str) -> str:
    """Return the text, cut to MAX_TEXT."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
