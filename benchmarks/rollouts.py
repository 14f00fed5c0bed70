"""Simulate traffic, and measure how often a rollout's guard is wrong, and how soon it is right.

Commands::

    python -m benchmarks.rollouts            2,000 runs of each kind of traffic, on all cores
    python -m benchmarks.rollouts --write    and write the tables into docs/reports/guard.md
    python -m benchmarks.rollouts --write --only sticky    rows that match, the others as they stand

Every outcome takes the way of a served one: `LiveRollout.count` decides whether it counts, has the
other version try what failed, and judges each second. Four requests of the baseline come with each
of the canary, whose error rate may be one percentage point above the baseline's.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from math import sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist, median
from types import SimpleNamespace
from typing import Any, NamedTuple

from cohort.errors import InferenceFailed
from cohort.registry import State
from cohort.rollouts import LiveRollout, Rollout, RolloutConfig, Variant
from cohort.rollouts.judgement import Guard
from cohort.rollouts.observed import CallerOutcome

GUARD = Guard(max_error_rate_increase=0.01)
ROLLOUT = Rollout("m", {"a": Variant("a", 1, 4), "b": Variant("b", 2, 1)}, "a")
RATIO = 4
REQUESTS = 2000
GUIDE = Path("docs/reports/guard.md")
TABLE = re.compile(r"(?<=<!-- benchmarks.rollouts -->\n).*?(?=<!-- end -->)", re.DOTALL)


class Asked(NamedTuple):
    """One outcome: when, of which variant, of which caller, and whether it is a failure.

    on_both: True if the other version fails on that input as well.
    """

    at: float
    variant: str
    caller: int
    bad: bool
    on_both: bool = False


Rate = Callable[[str, float], float]
"""The error rate of a variant, at a time in seconds."""

Traffic = Callable[[Random, Rate], Iterator[list[Asked]]]
"""Gives outcomes in groups whose times may overlap by some seconds, without end."""


def constant(baseline: float, canary: float) -> Rate:
    """Rates that stay."""
    return lambda variant, at: baseline if variant == "a" else canary


def together(increase: float) -> Rate:
    """Both fail three requests in ten for two seconds in thirty, the canary more by `increase`."""

    def rate(variant: str, at: float) -> float:
        common = 0.3 if at % 30 < 2 else 0.005
        return common + (increase if variant == "b" else 0.0)

    return rate


def degrading(increase: float) -> Rate:
    """From 0.5 % to 20 % in the first three minutes, for good; the canary more by `increase`."""

    def rate(variant: str, at: float) -> float:
        return 0.005 + 0.195 * min(at / 180, 1) + (increase if variant == "b" else 0.0)

    return rate


def visits(random: Random) -> Iterator[tuple[float, str, int]]:
    """Arrivals of callers, twenty in a second, each on a variant by chance."""
    at = 0.0
    for caller in range(10**9):
        at += random.expovariate(20.0)
        yield at, "b" if random.random() < 1 / (1 + RATIO) else "a", caller


def independent(random: Random, rate: Rate) -> Iterator[list[Asked]]:
    """Yield requests of a caller each, which fail independently."""
    for at, variant, caller in visits(random):
        yield [Asked(at, variant, caller, random.random() < rate(variant, at))]


def batches(size: int) -> Traffic:
    """Return runs of `size` requests, of a caller each, which fail together."""

    def traffic(random: Random, rate: Rate) -> Iterator[list[Asked]]:
        for at, variant, caller in visits(random):
            bad = random.random() < rate(variant, at)
            yield [Asked(at, variant, caller * size + one, bad) for one in range(size)]

    return traffic


def callers(size: int) -> Traffic:
    """Return callers of `size` requests, 0.2 s apart, all of which fail or succeed."""

    def traffic(random: Random, rate: Rate) -> Iterator[list[Asked]]:
        for at, variant, caller in visits(random):
            bad = random.random() < rate(variant, at)
            yield [Asked(at + one * 0.2, variant, caller, bad) for one in range(size)]

    return traffic


def retries(random: Random, rate: Rate) -> Iterator[list[Asked]]:
    """A request that fails is sent twice more, after 0.2 s and 0.6 s, and fails again."""
    for at, variant, caller in visits(random):
        bad = random.random() < rate(variant, at)
        times = (0.0, 0.2, 0.6) if bad else (0.0,)
        yield [Asked(at + later, variant, caller, bad) for later in times]


def sticky(random: Random, rate: Rate) -> Iterator[list[Asked]]:
    """400 callers that stay on a variant by their keys; every request of 2 % of them fails.

    What such a caller sends fails on either version. Those of the others fail at `rate`.
    """
    names = [f"{random.random()}" for _ in range(400)]
    variants = [ROLLOUT.choose(name, {1, 2}).name for name in names]
    bad = {caller for caller in range(400) if random.random() < 0.02}
    at = 0.0
    while True:
        at += random.expovariate(20.0)
        caller = random.randrange(400)
        variant, always = variants[caller], caller in bad
        failed = always or random.random() < rate(variant, at)
        yield [Asked(at, variant, caller, failed, always)]


class Case(NamedTuple):
    """A kind of traffic; `healthy` requests of the canary, which do not fail, come first."""

    name: str
    traffic: Traffic
    rate: Rate
    requests: int = REQUESTS
    healthy: int = 0


class Replays:
    """A rollout in use, whose versions answer what fails on one side only, or nothing."""

    def __init__(self) -> None:
        versions = {
            number: SimpleNamespace(state=State.READY, by_tensors=lambda _: self)
            for number in ROLLOUT.versions
        }
        catalog: Any = {ROLLOUT.model: SimpleNamespace(versions=versions)}
        self.live = LiveRollout(RolloutConfig(ROLLOUT, GUARD), lambda: catalog, print)
        self.inputs = self.optional_inputs = self.outputs = ()
        self.leases = SimpleNamespace(count=0, release=lambda: None)
        self._on_both = False

    def count(self, one: Asked) -> None:
        """Report an outcome to the rollout."""
        self._on_both = one.on_both
        version = ROLLOUT.variants[one.variant].version
        error = InferenceFailed("it fails") if one.bad else None
        self.live.count(
            CallerOutcome(
                one.variant, version, one.caller, {}, (), None, error, False, one.at, 0.001
            )
        )  # fmt: skip

    def side_queue(self, **_: object) -> Replays:
        """Where the other version tries what failed."""
        return self

    def submit(self, inputs: object, reply: Callable[..., None], **_: object) -> None:
        """Try it at once."""
        reply(*((None, InferenceFailed("it fails")) if self._on_both else ([], None)))

    def close(self) -> None:
        """Nothing waits."""


def rolled_back_after(case: Case, seed: int) -> int | None:
    """Return after how many requests of the canary it was rolled back; None if it was not."""
    random = Random(seed)
    replays = Replays()
    waiting: list[Asked] = []
    seen, second = -case.healthy, 1.0

    def rate(variant: str, at: float) -> float:
        return case.rate("a" if seen < 0 else variant, at)

    for group in case.traffic(random, rate):
        waiting += group
        while group[0].at >= second:
            due = sorted(one for one in waiting if one.at < second)
            waiting = [one for one in waiting if one.at >= second]
            for one in due:
                seen += one.variant == "b"
                replays.count(one)
            if replays.live.judge():
                return seen
            second += 1.0
        if seen >= case.requests:
            return None
    return None


WITHIN, AT = constant(0.01, 0.01), constant(0.01, 0.02)


def false_alarms() -> list[tuple[str, Case, Case]]:
    """Kinds of traffic: with a canary as good as the baseline, and with one at the limit."""
    kinds: list[tuple[str, Traffic]] = [
        ("independent requests", independent),
        *((f"runs of {size} that fail together", batches(size)) for size in (4, 8, 16)),
        *((f"callers whose {size} requests all fail", callers(size)) for size in (4, 8, 16)),
        ("failures that are tried three times", retries),
        ("sticky callers, 2 % of whom always fail, on either version", sticky),
    ]
    rows = []
    for name, one in kinds:
        number = re.search(r"4|8|16", name)
        requests = max(REQUESTS, 500 * int(number[0])) if number else REQUESTS
        rows.append((name, Case(name, one, WITHIN, requests), Case(name, one, AT, requests)))
    for name, both in (
        ("both fail 30 % for 2 s in 30", together),
        ("both go from 0.5 % to 20 % in three minutes, and stay", degrading),
    ):
        within, at = (Case(name, independent, both(increase)) for increase in (0.0, 0.01))
        rows.append((name, within, at))
    return rows


def power() -> list[tuple[str, Case, float, float]]:
    """Canaries beyond the limit, with both rates."""
    return [
        (f"{canary:.1%} against {baseline:.1%}{after}",
         Case("", independent, constant(baseline, canary), requests, healthy), baseline, canary)
        for baseline, canary, requests, healthy, after in (
            (0.001, 1.0, 2000, 0, ""),
            (0.01, 0.1, 2000, 0, ""),
            (0.01, 0.04, 2000, 0, ""),
            (0.001, 0.03, 4000, 0, ""),
            (0.001, 0.03, 4000, 200_000, ", after 200,000 good ones"),
        )
    ]  # fmt: skip


def fixed_n(baseline: float, canary: float, wanted: float = 0.5) -> int:
    """Requests of the canary from which a z-test, made once, finds it with this probability."""
    normal = NormalDist()
    edge = baseline + 0.01
    for requests in range(1, 100_000):
        null = sqrt(edge * (1 - edge) / requests + baseline * (1 - baseline) / requests / RATIO)
        true = sqrt(canary * (1 - canary) / requests + baseline * (1 - baseline) / requests / RATIO)
        short = normal.inv_cdf(GUARD.confidence) * null - (canary - edge)
        if short <= 0 and 1 - normal.cdf(short / max(true, 1e-9)) >= wanted:
            return requests
    raise ValueError(f"{canary} is not beyond {edge}")


def _run(job: tuple[int, bool, int]) -> int | None:
    place, first, seed = job
    rows = false_alarms()
    if place >= len(rows):
        return rolled_back_after(power()[place - len(rows)][1], seed)
    _, within, at = rows[place]
    return rolled_back_after(within if first else at, seed)


def table(runs: int, workers: int | None = None, *, kept: str = "", only: str = "") -> str:
    """Both tables, in Markdown.

    kept: The tables so far, for rows whose names do not match `only`.
    """
    alarms, found = false_alarms(), power()
    before = {line.split(" | ")[0]: line for line in kept.splitlines()}

    def keep(name: str) -> str | None:
        return None if re.search(only, name) else before.get(f"| {name}")

    lines = ["| traffic | canary as good as the baseline | exactly at the limit |", "|---|---|---|"]
    with ProcessPoolExecutor(workers) as pool:

        def results(place: int, *, first: bool, runs: int) -> list[int | None]:
            jobs = [(place, first, seed) for seed in range(runs)]
            return list(pool.map(_run, jobs, chunksize=8))

        for place, (name, *_) in enumerate(alarms):
            if (line := keep(name)) is None:
                shares = [
                    sum(one is not None for one in results(place, first=first, runs=runs)) / runs
                    for first in (True, False)
                ]
                line = f"| {name} | {shares[0]:.1%} | {shares[1]:.1%} |"
            lines.append(line)
        lines += [
            "",
            "| canary's errors | rolled back | median requests | z-test made once, power 1/2 |",
            "|---|---|---|---|",
        ]
        for place, (name, case, baseline, canary) in enumerate(found, len(alarms)):
            if (line := keep(name)) is None:
                times = results(place, first=True, runs=runs if not case.healthy else runs // 25)
                late = [one if one is not None else case.requests for one in times]
                early = sum(one < 0 for one in late) / len(late)
                caught = sum(one is not None for one in times) / len(times) - early
                fixed = fixed_n(baseline, canary)
                line = f"| {name} | {caught:.1%} | {median(late):.0f} | {fixed} |"
            lines.append(line)
    return "\n".join([*lines, "", f"{runs} runs each; the last row {runs // 25}."]) + "\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", metavar="REGEX", help="keep the other rows")
    arguments = parser.parse_args()
    found = TABLE.search(GUIDE.read_text())
    kept = "" if found is None else found[0]
    text = table(arguments.runs, arguments.workers, kept=kept, only=arguments.only)
    print(text)
    if arguments.write:
        GUIDE.write_text(TABLE.sub(lambda _: text, GUIDE.read_text()))


if __name__ == "__main__":
    main()
