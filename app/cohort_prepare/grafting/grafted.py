"""Result of a graft, and helpers to write its nodes."""

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
"""Keys for the config.yaml of a model that uses onnxruntime-extensions."""


@dataclass(frozen=True, slots=True)
class Grafted:
    """Result of a step.

    what: Description.
    findings: Keys of the step's JSON.
    config: Keys that the model needs in its config.yaml; default none.
    example: Valid inputs; default none.
    """

    what: str
    findings: Mapping[str, object]
    config: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, Array] = field(default_factory=dict)


class Nodes:
    """Nodes and weights of a graft, with names that are unique in the model.

    prefix: Start of each name.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def name(self) -> str:
        """Return a new name."""
        return f"{self.prefix}/{len(self.nodes)}_{len(self.weights)}"

    def weight(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a weight; return its name."""
        name = f"{self.prefix}/weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def add(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """Add a node with one output, named `to` or a new name; return the name."""
        return self.add_all(operator, *inputs, to=[to or self.name()], **attributes)[0]

    def add_all(
        self, operator: str, *inputs: str, to: Sequence[str], **attributes: Any
    ) -> Sequence[str]:
        """Add a node with several outputs; return their names."""
        name = f"{self.prefix}/node_{len(self.nodes)}"
        node = helper.make_node(operator, inputs, to, name=name, **attributes)
        self.nodes.append(node)
        return to


GRAFTABLE_OPSET = 18
"""Minimum opset, where Resize filters as Pillow does."""


def check_graftable(model: onnx.ModelProto) -> None:
    """Raise Misused if the model's opset is too low for grafts."""
    if (opset := onnx_opset(model)) < GRAFTABLE_OPSET:
        raise Misused(
            f"the model has opset {opset}, but a graft needs {GRAFTABLE_OPSET}: convert it first "
            f"with optimize: {{steps: [], opset: {GRAFTABLE_OPSET}}}"
        )


def graft(
    model: onnx.ModelProto,
    nodes: Nodes,
    given: onnx.ValueInfoProto,
    made: Sequence[str],
    domain: str,
) -> onnx.ModelProto:
    """Return the model with `nodes` that compute its inputs `made` from the input `given`."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    graph = whole.graph
    kept = [one for one in graph.input if one.name not in made]
    taken = {one.name for one in [*kept, *graph.output]}
    taken |= {one.name for one in graph.initializer}
    taken |= {name for node in graph.node for name in [*node.input, *node.output]}
    if given.name in taken:
        raise Misused(f"the model already has {quoted(given.name)}: use another name")
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
    """Return the graft as a separate model, whose outputs are the model's inputs."""
    outputs = [one for one in model.graph.input if one.name in made]
    graph = helper.make_graph(nodes.nodes, "graft", [given], outputs, nodes.weights)
    opsets = [make_opsetid("", onnx_opset(model)), make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def opened(path: Path, options: SessionOptions) -> Session:
    """Open a grafted model. Raises Misused without onnxruntime-extensions, and Rejected."""
    try:
        return open_session(path, options=options)
    except LoadFailed as error:
        kind = Misused if "pip install" in str(error) else Rejected
        raise kind(f"the model with the graft cannot be opened: {error}") from error


def check_same(before: Session, whole: Session, sent: Arrays, made: Arrays) -> None:
    """Raise Rejected unless the whole on `sent` gives the same as the model on `made`."""
    expected, got = run_named(before, made), run_named(whole, sent)
    if reason := explain(Pair(expected, got), ROUNDING):
        raise Rejected(f"the result differs from the model before: {reason}")


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
    """Return the wanted name, or the only one. Raises Misused."""
    if wanted is not None:
        if wanted not in names:
            raise Misused(f"the model has no {what} {quoted(wanted)}; it has {quoted_names(names)}")
        return wanted
    if len(names) != 1:
        raise Misused(f"choose the {what}: the model has {quoted_names(names) or 'none'}")
    return names[0]
