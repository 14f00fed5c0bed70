"""Measure language models' speed next to other engines: `python -m benchmarks.generative`.

Commands::

    python -m benchmarks.generative            all sizes, precisions and callers: about 15 minutes
    python -m benchmarks.generative --quick    the small model, 1 and 16 callers: about a minute
    python -m benchmarks.generative --write    and write benchmarks/results/generative.md

Each engine runs in a separate environment in build/bench. All candidates are up at once and
are asked in turn, in rounds, so what else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from random import Random
from statistics import median
from time import monotonic

import numpy as np

from benchmarks.generative.shapes import PRECISIONS, SHAPES, draw_prompts, write_models
from benchmarks.generative.workers import CANDIDATES, Answered, Candidate, Worker
from benchmarks.machine import describe
from benchmarks.servers import ROOT

REPORT = ROOT / "benchmarks" / "results" / "generative.md"
LATE_CALLERS, LATE_AFTER = 4, 8
"""Callers of the late joiner's run, and the tokens that the others have when it joins."""

THREADS = {"0.5 M": 1, "56 M": min(os.cpu_count() or 2, 8)}

SLOW_SECONDS = 20
"""A candidate that took longer for a number of callers is not asked with more of them."""

Results = dict[tuple[str, int], list[Answered]]


def main() -> None:
    """Measure, print the tables, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sizes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=13, help="no round starts after them")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of candidates' names")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.callers, chosen.rounds = ["0.5 M"], [1, 16], 1
    candidates = [one for one in CANDIDATES if any(part in one.name for part in chosen.only)]
    share = chosen.minutes * 60 / (len(chosen.sizes) * len(chosen.precisions))
    sections = {}
    for size in chosen.sizes:
        for precision in chosen.precisions:
            title = f"## {size} parameters, {precision}"
            facts = list(_facts(size, chosen))
            table = _measure(size, precision, candidates, chosen, monotonic() + share)
            sections[title] = "\n".join([title, "", *facts, "", *table])
            print(sections[title], flush=True)
    if chosen.write:
        _write(sections)


def _write(sections: Mapping[str, str]) -> None:
    """Replace these sections of the report; the others stay."""
    known = {}
    if REPORT.exists():
        for part in REPORT.read_text(encoding="utf-8").split("\n## ")[1:]:
            known[f"## {part.partition(chr(10))[0]}"] = f"## {part}"
    known |= sections
    titles = [f"## {size} parameters, {one}" for size in SHAPES for one in PRECISIONS]
    parts = [known[title].rstrip() + "\n" for title in titles if title in known]
    REPORT.write_text("\n".join([HEAD, *parts]), encoding="utf-8")
    print(f"wrote {REPORT}")


HEAD = """\
# Language models next to other engines

Written by `python -m benchmarks.generative --write`; do not edit.
All candidates are up at once and asked in turn, so the machine's other work slows all of them.
End tokens are ignored.
Weights are random and the same for all; llama.cpp and OpenVINO read them as GGUF.
INT4 is MatMulNBits in blocks of 32 for ONNX Runtime, and Q4_0 in GGUF.
OpenVINO reads no FP32 from GGUF: its weights are FP16, and it computes in FP32.

TTFT is the time to the first token, and TBT the time between tokens.
A rate is the median of the rounds, with their range and number.
A percentile is of all rounds.
In HTTP streams, a time is that of an event, which may bring several tokens.
The late joiner's steps are the tokens that each of the others gets before its first one.
"""


def _facts(size: str, chosen: argparse.Namespace) -> Iterator[str]:
    facts = describe()
    yield f"Measured on {datetime.now(UTC).date()}: {facts['machine']}, Python {facts['python']}."
    yield f"Cohort {facts['cohort']}, {THREADS[size]} threads for each candidate."
    yield f"Prompts of {chosen.prompt} tokens, answers of {chosen.tokens}."
    yield f"Load average of the last 5 minutes before: {os.getloadavg()[1]:.1f}."


def _measure(
    size: str,
    precision: str,
    candidates: Sequence[Candidate],
    chosen: argparse.Namespace,
    ends: float,
) -> list[str]:
    folder, gguf = write_models(size, precision)
    draws = Random(7)
    vocabulary = SHAPES[size].vocabulary
    results: Results = {}
    late: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for one in candidates:
            try:
                workers[one.name] = worker = Worker(one, folder, gguf, THREADS[size])
                stack.callback(worker.close)
                worker.ask(draw_prompts(draws, 2, chosen.prompt, vocabulary), 4, None)
            except (RuntimeError, OSError) as error:
                workers.pop(one.name, None)
                failed[one.name] = str(error)[:300]

        def ask(name: str, callers: int, join: int | None) -> Answered | None:
            prompts = draw_prompts(draws, callers, chosen.prompt, vocabulary)
            try:
                return workers[name].ask(prompts, chosen.tokens, join)
            except (RuntimeError, OSError) as error:
                failed[name] = f"with {callers} callers: {str(error)[:300]}"
                del workers[name]
                return None

        most = dict.fromkeys(workers, max(chosen.callers))
        for number in range(chosen.rounds):
            if number and monotonic() > ends:
                break
            for callers in chosen.callers:
                for name in [one for one in workers if callers <= most[one]]:
                    if answered := ask(name, callers, None):
                        results.setdefault((name, callers), []).append(answered)
                        if answered.seconds > SLOW_SECONDS:
                            most[name] = callers
                            failed[name] = f"with more than {callers} callers: it was too slow"
            for name in list(workers):
                if answered := ask(name, LATE_CALLERS, LATE_AFTER):
                    late.setdefault(name, []).append(answered.late_steps)
    return [*_table(results, late, chosen.tokens), *_failures(failed)]


def _table(results: Results, late: Mapping[str, list[float]], tokens: int) -> Iterator[str]:
    latencies = "TTFT p50 ms | p99 | TBT p50 ms | p99"
    yield f"| callers | candidate | tokens/s | range | {latencies} | CPU ms per token |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, callers in sorted(results, key=lambda key: key[1]):
        rounds = results[name, callers]
        made = callers * tokens
        rates = [made / one.seconds for one in rounds]
        first = np.percentile([at for one in rounds for at in one.first], (50, 99)) * 1000
        between = [gap for one in rounds for gap in one.between] or [0.0]
        gaps = np.percentile(between, (50, 99)) * 1000
        yield (
            f"| {callers} | {name} | {median(rates):,.0f} "
            f"| {min(rates):,.0f}-{max(rates):,.0f} ({len(rates)}) "
            f"| {first[0]:,.1f} | {first[1]:,.1f} | {gaps[0]:,.2f} | {gaps[1]:,.2f} "
            f"| {median(one.cpu / made * 1000 for one in rounds):,.2f} |"
        )
    yield ""
    yield "| candidate | steps until a late joiner's first token |"
    yield "|---|---|"
    for name, steps in late.items():
        yield f"| {name} | {min(steps):.0f}-{max(steps):.0f} |"
    yield ""


def _failures(failed: Mapping[str, str]) -> Iterator[str]:
    for name, reason in failed.items():
        yield f"- {name}: {' '.join(reason.split())}"
    if failed:
        yield ""


if __name__ == "__main__":
    main()
