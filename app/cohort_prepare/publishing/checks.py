"""Check a model before it is measured and published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import onnx

from cohort.errors import LoadFailed
from cohort.inspection import InspectionLimits, Inspector
from cohort.row_independence import RowVerdict
from cohort.session import ANY_MODEL, Opener
from cohort.session.runtime import ort
from cohort_prepare.failures import Misused, Rejected, name_path
from cohort_prepare.finishing import check_interface
from cohort_prepare.onnx_files import IMAGE_OPERATORS, TEXT_OPERATORS, serving_options

_MAX_NAMED = 5
"""Operators listed in a message."""


class CheckedModel(NamedTuple):
    """A model that can be published.

    model: The model without external data.
    external: Paths of its external data in the model's folder.
    rows: The graph's verdict on its rows.
    """

    model: onnx.ModelProto
    external: list[str]
    rows: RowVerdict


def check_publishable(path: Path, cache: Path, limits: InspectionLimits) -> CheckedModel:
    """Check the file, its operators and names, and that opening it does not harm the process.

    cache: Folder for results of the inspection.
    limits: Limits for opening it and its first run.

    Raises Misused if it is not a model, and Rejected if it cannot be served.
    """
    try:
        external = Opener(path, rules=ANY_MODEL).external()
    except LoadFailed as error:
        failure = Rejected if "external data" in str(error) else Misused
        raise failure(name_path(path, error)) from error
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # raised by protobuf
        raise Misused(f"{path} is not an ONNX model, or is truncated: {error}") from error
    if not model.graph.output:
        raise Rejected(f"{path.name} has no outputs")
    if any((path.parent / location).samefile(path) for location in external):
        raise Rejected(f"{path.name} names itself as its external data: export the model again")
    options = serving_options(model)
    opener = Opener(path, options=options, rules=ANY_MODEL)
    added = {TEXT_OPERATORS, IMAGE_OPERATORS} if options.custom_op_libraries else set()
    if unknown := _unknown_operators(model, added):
        raise Rejected(f"ONNX Runtime {ort.__version__} does not have {unknown}")
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # several types, raised by C++
        text = " ".join(str(error).split())[:500]
        raise Rejected(f"{path.name} is not valid ONNX: {text}") from error
    check_interface(model)
    inspector = Inspector(limits, cache, lambda _: None)
    try:
        inspector.inspect(opener)
        session = opener.open()
        session.close()
    except LoadFailed as error:
        raise Rejected(f"{path.name} cannot be served: {error}") from error
    finally:
        inspector.rest()
        inspector.close()  # an interrupted inspection continues otherwise
    return CheckedModel(model, external, session.rows)


def _unknown_operators(model: onnx.ModelProto, added: Set[str]) -> str:
    """List the operators that the runtime lacks, with domain and opset; "" if it has all.

    added: Domains of operators in custom libraries.
    """
    known: dict[tuple[str, str], int] = {}
    for schema in ort.capi.onnxruntime_pybind11_state.get_all_operator_schema():
        key = schema.domain, schema.name
        known[key] = min(known.get(key, schema.since_version), schema.since_version)
    own = {(one.domain, one.name) for one in model.functions}
    unknown: Counter[str] = Counter()
    for node, opsets in _nodes(model):
        domain = _domain(node.domain)
        opset = opsets.get(domain, 0)
        since = known.get((domain, node.op_type))
        if (
            domain in added
            or (node.domain, node.op_type) in own
            or (since is not None and since <= opset)
        ):
            continue
        later = "" if since is None else f", available since {since}"
        unknown[f"{node.op_type} of {domain or 'ai.onnx'}, opset {opset}{later}"] += 1
    shown = [
        f"{name} ({count} {'nodes' if count > 1 else 'node'})"
        for name, count in unknown.most_common(_MAX_NAMED)
    ]
    more = len(unknown) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, Mapping[str, int]]]:
    """Yield all nodes, including functions and subgraphs, with their opsets by domain."""
    waiting = [(part.node, _opsets(part)) for part in model.functions]
    waiting.append((model.graph.node, _opsets(model)))
    while waiting:
        nodes, opsets = waiting.pop()
        for node in nodes:
            yield node, opsets
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append((attribute.g.node, opsets))
                waiting += [(graph.node, opsets) for graph in attribute.graphs]


def _opsets(part: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {_domain(one.domain): one.version for one in part.opset_import}
