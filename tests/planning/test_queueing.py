"""The queueing model against what is known exactly, and against a simulation."""

from __future__ import annotations

from math import exp, inf, isclose, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.planning import Queue, simulate

SECONDS = 0.01


def queue_of(load: float, servers: int, variation: float = 0.0) -> Queue:
    """Return a queue with this load."""
    return Queue(load * servers / SECONDS, servers, SECONDS, variation)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_one_server_makes_the_share_wait_that_finds_it_busy(load: float) -> None:
    """With one server, the waiting share is the load."""
    assert isclose(queue_of(load, 1).waiting_share, load)


def test_erlang_c_has_its_published_value() -> None:
    """Ten servers and eight offered make 40.9 % of the calls wait."""
    assert round(queue_of(0.8, 10).waiting_share, 3) == 0.409


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_exponential_runs_wait_as_the_exact_formula_gives(load: float) -> None:
    """For M/M/c, the wait beyond Erlang's share is exponential."""
    queue = queue_of(load, 4, 1.0)
    late = queue.wait(0.999)
    rest = queue.waiting_share * exp(-late * 4 * (1 - load) / SECONDS)
    assert isclose(rest, 0.001)


@pytest.mark.parametrize("servers", [1, 4, 50])
@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("variation", [0.0, 0.5])
def test_the_formula_agrees_with_the_simulation(
    load: float, servers: int, variation: float
) -> None:
    """The 99th percentiles of both differ by at most 15 %."""
    queue = queue_of(load, servers, variation)
    found = simulate(queue.rate, servers, {1: SECONDS}, variation=variation)
    assert abs(log(queue.time(0.99) / found)) < log(1.15)


def test_a_full_queue_never_answers_in_time() -> None:
    """At a load of 1 or more, the line grows without end."""
    assert queue_of(1.0, 3).time(0.99) == inf
    assert queue_of(2.0, 3, 1.0).time(0.5) == inf


@settings(max_examples=30)
@given(
    st.floats(0.01, 0.98),
    st.integers(1, 200),
    st.floats(0, 2),
    st.floats(0.5, 0.999),
)
def test_a_replica_more_never_makes_answers_later(
    load: float, servers: int, variation: float, share: float
) -> None:
    """With the same rate, one more server shortens the time or leaves it."""
    queue = queue_of(load, servers, variation)
    more = Queue(queue.rate, servers + 1, SECONDS, variation)
    assert more.time(share) <= queue.time(share) * (1 + 1e-6)
    assert queue.time(share) >= queue.run_time(share) * (1 - 0.01)  # 1,000 run times stand for all


def test_shared_runs_answer_more_requests() -> None:
    """A server that takes all who wait keeps up with a rate that is too high for lone runs."""
    rate = 4 / SECONDS
    assert simulate(rate, 1, {1: SECONDS, 8: SECONDS}) < 3 * SECONDS
    assert simulate(rate, 1, {1: SECONDS}) > 100 * SECONDS


def test_a_size_between_two_measured_ones_takes_as_long_as_the_larger() -> None:
    """Three requests that wait together run as four do."""
    together = simulate(1e9, 1, {1: 1.0, 4: 3.0}, requests=7, share=0.0)
    assert together > 3.0
