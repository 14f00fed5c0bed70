"""What a graft makes, and how its nodes are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.helper import make_opsetid

from cohort.comparing import ROUNDING, Pair, explain
from cohort.errors import LoadFailed, quoted, quoted_names
from cohort.session import Session, SessionOptions, open_session
from cohort.session.rules import EXTENSIONS
from cohort.tensors import Array, Arrays
from cohort_prepare.evaluating.cases import run_named
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import onnx_opset
from cohort_prepare.onnx_files import model_digest, write_onnx
from cohort_prepare.steps import StepRecord, add_step

LIBRARY = SessionOptions(custom_op_libraries=(EXTENSIONS,))

CONFIG: Mapping[str, Any] = {"session": {"custom_op_libraries": [EXTENSIONS]}}
"""What a model that uses them needs in its config.yaml."""


@dataclass(frozen=True, slots=True)
class Grafted:
    """What a step made.

    what: In words.
    findings: For machines: keys of the step's JSON.
    config: What the model needs in its config.yaml; default nothing.
    example: Inputs that it takes; default none.
    """

    what: str
    findings: Mapping[str, object]
    config: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, Array] = field(default_factory=dict)


class Nodes:
    """Nodes and weights of a graft, whose names are no others in the model.

    prefix: Begins each name.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def name(self) -> str:
        """A new name."""
        return f"{self.prefix}/{len(self.nodes)}_{len(self.weights)}"

    def weight(self, values: Any, dtype: Any = np.int64) -> str:
        """A weight's name."""
        name = f"{self.prefix}/weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def add(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """Add a node with one output, whose name is `to`, or a new one."""
        return self.add_all(operator, *inputs, to=[to or self.name()], **attributes)[0]

    def add_all(
        self, operator: str, *inputs: str, to: Sequence[str], **attributes: Any
    ) -> Sequence[str]:
        """Add a node with several outputs."""
        name = f"{self.prefix}/node_{len(self.nodes)}"
        node = helper.make_node(operator, inputs, to, name=name, **attributes)
        self.nodes.append(node)
        return to


GRAFTABLE_OPSET = 18
"""The first whose Resize filters as Pillow does."""


def check_graftable(model: onnx.ModelProto) -> None:
    """Raise Misused where the model's opset lacks what grafts use."""
    if (opset := onnx_opset(model)) < GRAFTABLE_OPSET:
        raise Misused(
            f"the model has opset {opset}, and a graft needs {GRAFTABLE_OPSET}: convert it before, "
            f"with optimize: {{steps: [], opset: {GRAFTABLE_OPSET}}}"
        )


def graft(
    model: onnx.ModelProto,
    nodes: Nodes,
    given: onnx.ValueInfoProto,
    made: Sequence[str],
    domain: str,
) -> onnx.ModelProto:
    """The model with `nodes` before it, which make its inputs `made` of the input `given`."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    graph = whole.graph
    kept = [one for one in graph.input if one.name not in made]
    taken = {one.name for one in [*kept, *graph.output]}
    taken |= {one.name for one in graph.initializer}
    taken |= {name for node in graph.node for name in [*node.input, *node.output]}
    if given.name in taken:
        raise Misused(f"the model has {quoted(given.name)} already: give another name")
    own = [*graph.node]
    del graph.input[:], graph.node[:]
    graph.input.extend([given, *kept])
    graph.node.extend([*nodes.nodes, *own])
    graph.initializer.extend(nodes.weights)
    if domain not in {one.domain for one in whole.opset_import}:
        whole.opset_import.append(make_opsetid(domain, 1))
    return whole


def before_alone(
    model: onnx.ModelProto,
    nodes: Nodes,
    given: onnx.ValueInfoProto,
    made: Sequence[str],
    domain: str,
) -> onnx.ModelProto:
    """The graft without the model: its outputs are the model's inputs."""
    outputs = [one for one in model.graph.input if one.name in made]
    graph = helper.make_graph(nodes.nodes, "graft", [given], outputs, nodes.weights)
    opsets = [make_opsetid("", onnx_opset(model)), make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def opened(path: Path, options: SessionOptions) -> Session:
    """Open a model on the way. Raises Misused without onnxruntime-extensions, and Rejected."""
    try:
        return open_session(path, options=options)
    except LoadFailed as error:
        kind = Misused if "pip install" in str(error) else Rejected
        raise kind(f"the model with the graft does not open: {error}") from error


def check_same(before: Session, whole: Session, sent: Arrays, made: Arrays) -> None:
    """Raise Rejected where the whole gives of `sent` what the model does not of `made`."""
    expected, got = run_named(before, made), run_named(whole, sent)
    if reason := explain(Pair(expected, got), ROUNDING):
        raise Rejected(f"the whole differs from the model before: {reason}")


def write_grafted(
    whole: onnx.ModelProto,
    before: Path,
    out: Path,
    step: str,
    what: str,
    options: Mapping[str, Any],
) -> None:
    """Write the model with a record of the step."""
    add_step(whole, StepRecord(step, what, options=options, before=model_digest(before)))
    write_onnx(whole, out)


def only_one(names: Sequence[str], wanted: str | None, what: str) -> str:
    """The one that is wanted, or the only one. Raises Misused."""
    if wanted is not None:
        if wanted not in names:
            raise Misused(f"the model has no {what} {quoted(wanted)}; it has {quoted_names(names)}")
        return wanted
    if len(names) != 1:
        raise Misused(f"say which {what}: the model has {quoted_names(names) or 'none'}")
    return names[0]
