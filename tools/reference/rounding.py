"""The page of kernels whose rounding depends on the run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from cohort.profiling.exactness import TABLE
from tools import ROOT

TEMPLATE = ROOT / "tools" / "reference" / "rounding.md"


def rounding_page() -> str:
    """Return the text of the page."""
    parts = json.loads(TABLE.read_text(encoding="utf-8"))
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{parts}", "".join(map(_part, parts)))


def _part(part: Mapping[str, Any]) -> str:
    seen: defaultdict[str, dict[int, list[str]]] = defaultdict(lambda: {1: [], 2: []})
    for one in part["rounding"]:
        seen[one["kernel"]][one["threads"]].append(f"{one['by']} {one['difference']:g}")
    rows = "\n".join(
        f"| `{kernel}` | {', '.join(ways[1]) or 'none'} | {', '.join(ways[2]) or 'none'} |"
        for kernel, ways in seen.items()
    )
    cases, tried = sum(part["tried"].values()), len(part["tried"])
    return f"""
## ONNX Runtime {part["runtime"]}, {part["instructions"]}

{tried} kernels ran in {cases:,} cases; {tried - len(seen)} returned the same bits in all.

| kernel | on one thread | on two threads |
|---|---|---|
{rows}
"""
