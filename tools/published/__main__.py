"""Ask models that others published over every API, and write benchmarks/results/published.md."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import report
from cohort.errors import CohortError
from tests.e2e.asking import CALLERS
from tests.e2e.processes import cohort, free_port
from tools import ROOT
from tools.published.packages import PublishedModel, published_models
from tools.published.trying import FEW_ROUNDS, FEWER, Outcome, Questions, find_questions, try_model

RECORD = ROOT / "benchmarks" / "results" / "published.md"

AT_ONCE = 4
"""Models that a server has: few, so that they fit in memory."""

CONFIG = """
timeout_ms: 120000
batching: {max_queue_delay_ms: 20, max_queue_seconds: 120, exact: EXACT}
"""
"""A machine that does much else may take long. The delay lets all callers' requests meet."""

COLUMNS = (
    *("model", "package", "rows", "batched", "requests a run", "wrong", "exact", "other bits"),
    *("batched, `exact: true`", "requests a run", "other bits", "rounds"),
)

SAYS = (
    f"Each model got {CALLERS} requests of varied values ({FEWER} if they are large), two of them "
    "of several rows if it accepts that.\n"
    "They were sent alone, then all at once, round after round, over /predict, V1, V2 and gRPC.\n"
    "Answers are compared with those of the same requests alone over the first API.\n"
    "Runs wait 20 ms for company, so that more is shared than by default.\n"
    f"Without shared runs, there are {FEW_ROUNDS} rounds.\n"
    "Answers are *wrong* if they differ by more than rounding explains.\n"
    "The column *other bits* counts those with any other bit, with the largest difference.\n"
    "The left half is without `batching: {exact: true}`, the right one with it."
)

Outcomes = tuple[Outcome, Outcome]
"""Without and with `exact: true`."""


def main() -> int:
    """Try all models; return 1 if an answer was wrong, or another bit broke a promise."""
    parser = argparse.ArgumentParser("make published", description=__doc__)
    parser.add_argument("--only", default="", help="models whose names this finds; writes nothing")
    parser.add_argument("--rounds", type=int, default=20, help="for each API; default 20")
    parser.add_argument(
        "--seconds", type=float, default=5, help="no further round after that; default 5"
    )
    given = parser.parse_args()
    models = [one for one in published_models() if re.search(given.only, one.name)]
    console = Console(stderr=True)
    found: dict[PublishedModel, Outcomes] = {}
    groups = [models[place : place + AT_ONCE] for place in range(0, len(models), AT_ONCE)]
    for group in track(groups, "models", console=console):
        found |= try_group(group, given.rounds, given.seconds)
        if not given.only:
            limit = f"{given.rounds} rounds, of which none begins after {given.seconds:g} s"
            write(found, f"{len(found)} of {len(models)} models, {limit}")
    table = Table(*COLUMNS, title=summary(list(found.values())))
    for model, outcomes in found.items():
        table.add_row(*cells(model, outcomes))
    Console(width=200).print(table)
    return int(any(breaks(*outcomes) for outcomes in found.values()))


def write(found: Mapping[PublishedModel, Outcomes], run: str) -> None:
    """Write the record."""
    lines = [cells(model, outcomes) for model, outcomes in found.items()]
    report.write_page(
        RECORD, "Models that others published", SAYS, "make published",
        f"{run}\n- {summary(list(found.values()))}", report.markdown(COLUMNS, lines),
    )  # fmt: skip


def summary(found: Sequence[Outcomes]) -> str:
    """All of it in a sentence."""
    default, exact = ([pair[side] for pair in found] for side in (0, 1))
    sharing = [sum(one.batching.get("on", False) for one in side) for side in (default, exact)]
    return (
        f"{sum(one.wrong for one in default)} of {sum(one.compared for one in default)} answers "
        f"wrong without `exact`, where {sharing[0]} models share runs; with it "
        f"{sum(one.other_bits for one in exact)} of {sum(one.compared for one in exact)} have "
        f"other bits, and {sharing[1]} models share runs"
    )


def try_group(
    models: Sequence[PublishedModel], rounds: int, seconds: float
) -> Mapping[PublishedModel, Outcomes]:
    """Serve a few models, by the one config, then by the other, and ask each in turn."""
    problems: dict[PublishedModel, Outcome] = {}
    asked: dict[PublishedModel, Questions] = {}
    for model in models:
        try:
            asked[model] = find_questions(model.path)
        except CohortError as error:
            problems[model] = Outcome(problem=str(error))
    default, exact = (
        problems | asyncio.run(_serve(asked, CONFIG.replace("EXACT", flag), rounds, seconds))
        for flag in ("false", "true")
    )
    return {model: (default[model], exact[model]) for model in models}


async def _serve(
    asked: Mapping[PublishedModel, Questions], config: str, rounds: int, seconds: float
) -> dict[PublishedModel, Outcome]:
    with tempfile.TemporaryDirectory(prefix="cohort-published-") as name:
        folder = Path(name)
        (folder / "models").mkdir()
        for model in asked:
            model.place(folder / "models" / model.name, config)
        if not asked:
            return {}
        with cohort(folder / "models", folder, grpc_port=free_port()) as server:
            return {
                model: await try_model(
                    server, model.name, questions, rounds=rounds, seconds=seconds
                )
                for model, questions in asked.items()
            }


def breaks(default: Outcome, exact: Outcome) -> bool:
    """Return True if an answer was wrong, or had other bits where it should not."""
    claimed = [default] if default.batching.get("exact") else []
    return bool(default.wrong or exact.wrong or any(one.other_bits for one in [*claimed, exact]))


def cells(model: PublishedModel, outcomes: Outcomes) -> list[str]:
    """Return a line of the table, as COLUMNS names them."""
    default, exact = outcomes
    if problem := default.problem or exact.problem:
        return [model.name, model.package, " ".join(problem.split()), *[""] * (len(COLUMNS) - 3)]
    had = default.rounds + exact.rounds
    same = exact.batching["reason"] == default.batching["reason"]
    return [
        model.name,
        model.package,
        default.batching["rows"]["verdict"],
        _yes(default.batching["on"], default.batching["reason"]),
        f"{default.asked / default.runs:.1f}",
        _wrong(default),
        _yes(default.batching["exact"], default.batching["exact_reason"]),
        _bits(default),
        _yes(exact.batching["on"], "the same" if same else exact.batching["reason"]),
        f"{exact.asked / exact.runs:.1f}",
        _bits(exact),
        str(had[0]) if min(had) == max(had) else f"{min(had)} to {max(had)}",
    ]


def _yes(so: bool, reason: str) -> str:
    return "yes" if so else f"no: {reason.partition(' (batching.trust')[0]}"


def _wrong(outcome: Outcome) -> str:
    rounded = outcome.rounded - outcome.wrong
    more = f", {rounded} rounded once more" if rounded else ""
    return f"{outcome.wrong} of {outcome.compared}{more}"


def _bits(outcome: Outcome) -> str:
    far = f", by {outcome.furthest:.1g}" if outcome.other_bits else ""
    return f"{outcome.other_bits} of {outcome.compared}{far}"


if __name__ == "__main__":
    sys.exit(main())
