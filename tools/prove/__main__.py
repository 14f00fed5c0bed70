"""Draw graphs, and try the verdicts on their rows; the same with ONNX's node tests."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from rich.progress import Progress

from cohort.model_file.model import parse_model
from cohort.row_independence import prove_rows
from tools.prove.contrib_cases import contrib_cases
from tools.prove.experiment import RowCase, open_session, try_rows
from tools.prove.graph_cases import graph_cases
from tools.prove.node_cases import node_cases
from tools.prove.random_graphs import random_graph

TRIALS = 4
GRAPHS_AT_ONCE, CPU_SECONDS = 200, 20
"""Limits of a process, plus a quarter of a second for each graph: some kernels never end."""

INDEPENDENT, MIXED, NOT_RUN = "independent", "mixed", "not run"

Counts = Counter[tuple[str, str]]
"""Number of models by verdict and outcome: independent, mixed or not run."""

Result = tuple[Counts, list[str]]
"""These, and what contradicts a proof."""


def try_graph(seed: int, *, proven_only: bool = False) -> tuple[str, str, str]:
    """The verdict on a random graph, its outcome, and what contradicts a proof; "" for nothing.

    proven_only: True if graphs without a proof are not run: nothing can contradict them.
    """
    graph = random_graph(seed)
    case = RowCase(f"seed {seed}", graph.model(), graph.axes, graph.rows)
    return try_case(case, TRIALS, proven_only=proven_only)


def try_case(
    case: RowCase, trials: int | None = None, *, proven_only: bool = False
) -> tuple[str, str, str]:
    """Return the same of a model.

    trials: Number of trials; default: five more than it has inputs.
    """
    model = case.model.SerializeToString()
    verdict = prove_rows(parse_model(memoryview(model)).graphs, guesses=[case.axes])
    if proven_only and not verdict.independent:
        return verdict.kind, NOT_RUN, ""
    try:
        session = open_session(model)
    except Exception:  # noqa: BLE001  of operators that are not in the runtime, or not with rows
        return verdict.kind, NOT_RUN, ""
    tried = try_rows(session, verdict, case.draw, trials or len(case.axes) + 5)
    if not tried.ran:
        return verdict.kind, NOT_RUN, ""
    if not tried.difference:
        return verdict.kind, INDEPENDENT, ""
    wrong = f"{case.name} {dict(case.axes)}: {tried.difference}" if verdict.independent else ""
    return verdict.kind, MIXED, wrong


def try_graphs(first: int, count: int, *, proven_only: bool = False) -> Result:
    """Try some graphs in this process, which a kernel may end."""
    counts: Counts = Counter()
    wrong: list[str] = []
    for seed in range(first, first + count):
        kind, outcome, contradiction = try_graph(seed, proven_only=proven_only)
        counts[kind, outcome] += 1
        wrong += [contradiction] if contradiction else []
    return counts, wrong


def _in_child(first: int, count: int) -> Result:
    """Run the same in a separate process.

    Where it ends early, each half, so that one is left out.
    """
    chosen = {"graphs": count, "seed": first}
    command = [sys.executable, "-m", "tools.prove", "--child"]
    command += [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found = json.loads(done.stdout)
        return Counter({(kind, outcome): n for kind, outcome, n in found["counts"]}), found["wrong"]
    if count == 1:
        return Counter({(f"seed {first}", f"its process ended with {done.returncode}"): 1}), []
    half = count // 2
    (one, wrong), (other, more) = _in_child(first, half), _in_child(first + half, count - half)
    return one + other, wrong + more


def _report(what: str, counts: Counts, wrong: list[str]) -> None:
    total = sum(counts.values())
    lines = [f"{what}: {total:,}"]
    lines += [
        f"  {kind}, {outcome}: {count:,}" for (kind, outcome), count in sorted(counts.items())
    ]
    lines += [f"  contradiction: {one}" for one in wrong]
    sys.stdout.write("\n".join(lines) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Return 1 where something that was run contradicts a proof."""
    parser = argparse.ArgumentParser("make prove", description=__doc__)
    parser.add_argument("--graphs", type=int, default=100_000, help="random graphs to try")
    parser.add_argument("--seed", type=int, default=1, help="that of the first graph")
    parser.add_argument("--no-nodes", action="store_true", help="leave out ONNX's node tests")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        seconds = CPU_SECONDS + chosen.graphs // 4
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        counts, wrong = try_graphs(chosen.seed, chosen.graphs)
        listed = [[*key, count] for key, count in counts.items()]
        json.dump({"counts": listed, "wrong": wrong}, sys.stdout)
        return 0
    counts, wrong = _try_all(chosen.seed, chosen.graphs)
    _report("random graphs", counts, wrong)
    if not chosen.no_nodes:
        nodes, contradictions = try_nodes()
        _report("node tests", nodes, contradictions)
        wrong += contradictions
    return 1 if wrong else 0


def _try_all(seed: int, graphs: int) -> Result:
    counts: Counts = Counter()
    wrong: list[str] = []
    parts = [
        (first, min(GRAPHS_AT_ONCE, seed + graphs - first))
        for first in range(seed, seed + graphs, GRAPHS_AT_ONCE)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, Progress() as shown:
        task = shown.add_task("graphs", total=graphs)
        for (_, count), (found, contradictions) in zip(
            parts, pool.map(lambda part: _in_child(*part), parts), strict=True
        ):
            counts += found
            wrong += contradictions
            shown.advance(task, count)
    return counts, wrong


def try_nodes() -> Result:
    """Try ONNX's node tests."""
    counts: Counts = Counter()
    wrong: list[str] = []
    for case in (*node_cases(), *contrib_cases(), *graph_cases()):
        kind, outcome, contradiction = try_case(case)
        counts[kind, outcome] += 1
        wrong += [contradiction] if contradiction else []
    return counts, wrong


if __name__ == "__main__":
    sys.exit(main())
