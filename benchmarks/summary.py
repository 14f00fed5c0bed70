"""Medians over rounds, ratios, and the targets of the issue: plain functions on what was found."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Found

Cell = dict[str, Any]
QUANTITIES = ("rate", "p50", "p99", "cpu_us", "refused", "errors")


def cells(found: Found) -> dict[tuple[str, str, int], Cell]:
    """Medians by workload, server and connections, in the order they were measured."""
    by_key: dict[tuple[str, str, int], list[Cell]] = {}
    for one in found.rounds:
        by_key.setdefault((one["workload"], one["server"], one["connections"]), []).append(one)
    return {key: _median(of) for key, of in sorted(by_key.items(), key=_order(found))}


def _order(found: Found) -> Callable[[Any], tuple[int, int]]:
    seen = list(dict.fromkeys(one["workload"] for one in found.rounds))
    return lambda item: (seen.index(item[0][0]), item[0][2])


def _median(of: list[Cell]) -> Cell:
    middle: Cell = {name: statistics.median(one[name] for one in of) for name in QUANTITIES}
    hot = [one["hot"] for one in of if one["hot"] is not None]
    middle["hot"] = min(hot) if hot else None
    middle["spread"] = (min(one["rate"] for one in of), max(one["rate"] for one in of))
    middle["refused"] = sum(one["refused"] for one in of)
    middle["errors"] = sum(one["errors"] for one in of)
    return middle


def loops(found: Found, workload: str) -> dict[str, Cell]:
    """Return the bare loops of a workload, by name, medians over rounds."""
    return {
        name: {
            **{one: loop[one] for one in ("batch", "instances", "threads")},
            **{
                quantity: statistics.median(heard[quantity] for heard in loop["rounds"])
                for quantity in ("rate", "p50", "p99", "cpu_us", "memory_mb")
            },
        }
        for name, loop in found.bare.get(workload, {}).items()
        if loop.get("rounds")
    }


def bare(found: Found, workload: str, name: str) -> Cell | None:
    """Return a bare loop by name; the best is whichever did best over the rounds."""
    measured = loops(found, workload)
    if name == "bare loop, best" and measured:
        return max(measured.values(), key=lambda loop: loop["rate"])
    return measured.get(name)


def opened(found: Found) -> dict[tuple[str, float], Cell]:
    """Return the open loop's medians by server and share of capacity."""
    by_key: dict[tuple[str, float], list[Cell]] = {}
    for one in found.open:
        by_key.setdefault((one["server"], one["share"]), []).append(one)
    return {
        key: {
            name: statistics.median(one[name] for one in of) for name in of[0] if name != "server"
        }
        for key, of in sorted(by_key.items())
    }


@dataclass(frozen=True)
class Target:
    """One line of the issue's table and its result; `reached` is None if it was not measured."""

    work: str
    aim: str
    value: str
    reached: bool | None


def targets(found: Found) -> list[Target]:
    """Compare the results with the targets."""
    table = cells(found)
    opens = opened(found)

    def ratio(
        work: str, aim: str, key: tuple[str, int], name: str, against: str, good: float, *,
        least: bool = True,
    ) -> Target:  # fmt: skip
        ours = table.get((key[0], "cohort", key[1]))
        other = (
            bare(found, key[0], against)
            if against.startswith("bare")
            else table.get((key[0], against, key[1]))
        )
        if not ours or not other:
            return Target(work, aim, "?", None)
        value = ours[name] / other[name]
        return Target(work, aim, f"{value:.2f}x", value >= good if least else value <= good)

    def limit(work: str, aim: str, value: Any, good: float, unit: str) -> Target:
        if value is None:
            return Target(work, aim, "?", None)
        return Target(work, aim, f"{value:.2f}{unit}", value <= good)

    mlp = table.get(("mlp", "cohort", 64))
    text = table.get(("encoder", "cohort", 64))
    sixty = opens.get(("cohort", 0.6))
    best, single = "bare loop, best", "bare loop, one by one"
    return [
        ratio("MLP, 64 connections, req/s against the tutorial server", "≥ 10x",
              ("mlp", 64), "rate", "tutorial", 10),
        limit("MLP, 64 connections, CPU per request", "≤ 15 µs",
              mlp and mlp["cpu_us"], 15, " µs"),
        ratio("the same against the tutorial server", "≤ 1/8",
              ("mlp", 64), "cpu_us", "tutorial", 1 / 8, least=False),
        ratio("MLP, 1 connection, p50 against the tutorial server", "≤ 0.5x",
              ("mlp", 1), "p50", "tutorial", 0.5, least=False),
        ratio("ResNet-50 binary, 16 connections, against the bare loop", "≥ 0.95",
              ("resnet50-binary", 16), "rate", best, 0.95),
        ratio("ResNet-50 JSON, 16 connections, against the bare loop", "≥ 0.88",
              ("resnet50-json", 16), "rate", best, 0.88),
        ratio("encoder, 64 connections, against the bare loop one by one", "≥ 1.1",
              ("encoder", 64), "rate", single, 1.1),
        limit("encoder, 64 connections, p99 against p50", "≤ 3x",
              text and text["p99"] / text["p50"], 3, "x"),
        limit("MLP at 60 % of capacity, open loop, p99", "≤ 3 ms",
              sixty and sixty["p99"] * 1e3, 3, " ms"),
        *(_ahead(table, other) for other in ("litserve", "mlserver")),
        limit("600 KB binary body, copies of the payload before the run", "≤ 2",
              found.copies.get("copies"), 2, ""),
        limit("memory after 1,000,000 requests against after 10,000", "≤ 1.05x",
              found.growth.get("ratio"), 1.05, "x"),
        limit("a fast model's p99 next to a saturated ResNet-50, against alone", "≤ 2x",
              found.neighbour.get("ratio"), 2, "x"),
    ]  # fmt: skip


def _ahead(table: dict[tuple[str, str, int], Cell], other: str) -> Target:
    """Ahead on every workload and connection count, by req/s and by p99."""
    behind, compared = [], 0
    for (workload, server, many), theirs in table.items():
        ours = table.get((workload, "cohort", many))
        if server == other and ours:
            compared += 1
            if ours["rate"] <= theirs["rate"] or ours["p99"] >= theirs["p99"]:
                behind.append(f"{workload} at {many}")
    value = f"{compared - len(behind)} of {compared}"
    value += f" (not: {', '.join(behind)})" if behind else ""
    work = f"{other} on every model and connection count, req/s and p99"
    return Target(work, "ahead", value if compared else "?", not behind if compared else None)
