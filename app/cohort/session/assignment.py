"""Assignment of an open model's nodes to execution providers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cohort.session.providers import ORT_NAMES


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node of the main graph, after the runtime prepared it, and the provider that runs it.

    provider: The provider's short name.
    operator: With its domain, unless that is ONNX's own: `com.microsoft.FusedMatMul`.
    name: The name in the file; "" if it has no name.
    """

    provider: str
    operator: str
    name: str = ""


def count_nodes(raw: Any) -> dict[str, int]:
    """Return the number of nodes by provider of ONNX Runtime's session `raw`; empty if unknown."""
    counts: Counter[str] = Counter()
    for part in _parts(raw):
        counts[_SHORT.get(part.ep_name, part.ep_name)] += len(part.get_nodes())
    return dict(counts)


def list_nodes(raw: Any) -> Iterator[AssignedNode]:
    """Iterate over the nodes that `count_nodes` counts."""
    for part in _parts(raw):
        provider = _SHORT.get(part.ep_name, part.ep_name)
        for node in part.get_nodes():
            domain = "" if node.domain in {"", "ai.onnx"} else f"{node.domain}."
            yield AssignedNode(provider, domain + node.op_type, node.name)


def _parts(raw: Any) -> Any:
    try:
        return raw.get_provider_graph_assignment_info()
    except Exception:  # noqa: BLE001  older runtimes lack it; it is optional
        return []


_SHORT = {ort_name: short for short, ort_name in ORT_NAMES.items()}
