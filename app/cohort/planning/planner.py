"""Choose the number of replicas for a rate and a time, with requests alone and in shared runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import floor, inf

from cohort.planning.queueing import Queue
from cohort.planning.server import ReplicaRuns
from cohort.planning.simulation import simulate

MAX_SERVERS = 2_000_000
"""Maximum runs at a time that are planned; the formula takes 0.2 s for them."""

MAX_SIMULATED_SERVERS = 20_000
_NO_WAIT_SERVERS = 100
"""Servers at which no request waits, if one is busy on average."""

SIMULATED_REQUESTS = 100_000

_ROUNDING = 1 + 1e-9
"""A time that exceeds the wanted one by less than this factor is in time."""


class Unreachable(Exception):
    """No number of replicas meets the wanted time. The message gives the reason and a way out."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted service.

    rate: Requests per second in the busiest minute; above 0.
    seconds: The time that `share` of the requests may take.
    share: Default 0.99.
    variation: The standard deviation of a run's time over its mean; default 0.
    overhead: Seconds of a request without its run, on the same core; default 0.
    spare: Replicas that may be missing; default 0.
    """

    rate: float
    seconds: float
    share: float = 0.99
    variation: float = 0.0
    overhead: float = 0.0
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Replicas for a wanted service.

    replicas: With the spare ones.
    runs_at_once: The runs of a replica at a time.
    load: The share of time that a run slot is busy while the spare replicas are missing.
    waiting_share: The share of requests that wait for a slot.
    seconds: The time from arrival to answer that `share` of the requests does not exceed, by the
        queueing model, while the spare replicas are missing.
    simulated: The same by simulation; None if there are too many slots to simulate.
    shared_replicas: The replicas if requests share runs as in the profile, by simulation, with the
        spare ones. None without shared runs, or with too many slots.
    shared_seconds: The time that belongs to it.
    """

    replicas: int
    runs_at_once: int
    load: float
    waiting_share: float
    seconds: float
    simulated: float | None
    shared_replicas: int | None = None
    shared_seconds: float | None = None


def plan_replicas(runs: ReplicaRuns, wanted: Wanted) -> Plan:
    """Return the fewest replicas that answer in time. Raises Unreachable.

    The answer meets the time by the queueing model and, where it can be simulated, there as well.
    """
    alone = runs.seconds + wanted.overhead
    _check(alone, wanted)

    def queue(replicas: int) -> Queue:
        return Queue(wanted.rate, replicas * runs.at_once, alone, wanted.variation)

    @cache
    def simulated(replicas: int) -> float | None:
        return _simulate(wanted, replicas * runs.at_once, {1: alone})

    def in_time(replicas: int) -> bool:
        times = (queue(replicas).time(wanted.share), simulated(replicas) or 0.0)
        return all(_is_in_time(one, wanted) for one in times)

    replicas = _fewest(wanted.rate * alone / runs.at_once, in_time)
    chosen = queue(replicas)
    plan = Plan(
        replicas=replicas + wanted.spare,
        runs_at_once=runs.at_once,
        load=chosen.load,
        waiting_share=chosen.waiting_share,
        seconds=chosen.time(wanted.share),
        simulated=simulated(replicas),
    )
    return _add_shared_runs(plan, runs, wanted)


def _check(alone: float, wanted: Wanted) -> None:
    """Raise Unreachable if no number of replicas helps, or if they are too many to plan."""
    quickest = Queue(wanted.rate, 1, alone, wanted.variation).run_time(wanted.share)
    if wanted.variation:  # the simulation draws other runs, whatever the number of replicas
        unhurried = replace(wanted, rate=1 / alone)
        quickest = max(quickest, _simulate(unhurried, _NO_WAIT_SERVERS, {1: alone}) or 0.0)
    if not _is_in_time(quickest, wanted):
        raise Unreachable(
            f"a request takes {1000 * quickest:.4g} ms without any wait, and "
            f"{1000 * wanted.seconds:.4g} ms are wanted. More replicas do not help: "
            "use a faster model or machine, or allow more time"
        )
    if wanted.rate * alone > MAX_SERVERS:
        raise Unreachable(
            f"{wanted.rate:.4g} requests/s of {1000 * alone:.4g} ms need more than "
            f"{MAX_SERVERS:,} runs at a time: divide the rate and plan the parts"
        )


def _is_in_time(seconds: float, wanted: Wanted) -> bool:
    return seconds <= wanted.seconds * _ROUNDING


def _add_shared_runs(plan: Plan, runs: ReplicaRuns, wanted: Wanted) -> Plan:
    sizes = {
        count: taken + count * wanted.overhead for count, taken in runs.seconds_by_requests.items()
    }
    if max(sizes) == 1 or plan.simulated is None:
        return plan

    @cache
    def time(replicas: int) -> float:
        return _simulate(wanted, replicas * runs.at_once, sizes) or inf

    busy = wanted.rate * min(taken / count for count, taken in sizes.items()) / runs.at_once
    most = MAX_SIMULATED_SERVERS // runs.at_once
    replicas = _fewest(busy, lambda count: count > most or _is_in_time(time(count), wanted))
    if replicas > most:
        return plan
    return replace(plan, shared_replicas=replicas + wanted.spare, shared_seconds=time(replicas))


def _simulate(wanted: Wanted, servers: int, sizes: Mapping[int, float]) -> float | None:
    if servers > MAX_SIMULATED_SERVERS:
        return None
    return simulate(
        wanted.rate,
        servers,
        sizes,
        share=wanted.share,
        variation=wanted.variation,
        requests=SIMULATED_REQUESTS,
    )


def _fewest(busy: float, in_time: Callable[[int], bool]) -> int:
    """Return the smallest number of replicas above `busy` that is in time, by bisection."""
    too_few = floor(busy)
    enough = too_few + 1
    while not in_time(enough):
        too_few, enough = enough, 2 * enough - floor(busy)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if in_time(middle) else (middle, enough)
    return enough
