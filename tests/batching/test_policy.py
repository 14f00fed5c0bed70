"""The choice of requests that run together, without a loop or a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import BatchDecision, BatchPolicy, Key, RowCost, count_elements, next_batch
from cohort.batching.policy import (
    HEAD_START_SECONDS,
    count_fitting,
    rows_and_key,
    rows_and_single_key,
)
from cohort.tensors import Arrays


class Request(NamedTuple):
    """A request as the decision sees it."""

    arrived: float
    rows: int
    length: float = 1.0
    step: int = 0

    @property
    def place(self) -> float:
        """When it counts as having arrived."""
        return self.arrived - self.step * HEAD_START_SECONDS


FOREVER = float("inf")
A: Key = ("a",)
B: Key = ("b",)


def queue(*rows: int, arrived: float = 1.0) -> list[Request]:
    return [Request(arrived + i, n) for i, n in enumerate(rows)]


def policy(most: int = 8, delay: float = 0) -> BatchPolicy:
    return BatchPolicy(max_batch_size=most, max_queue_delay_ms=delay)


@pytest.mark.parametrize(
    ("rows", "most", "taken"),
    [
        ([1, 1, 1], 8, (3, 3)),
        ([3, 3, 3], 8, (2, 6)),  # rows are counted, not requests
        ([4, 4, 4], 8, (2, 8)),
        ([8, 1], 8, (1, 8)),
        ([9, 1], 8, (1, 9)),  # larger than the maximum: alone and uncut
        ([1, 9, 1], 8, (1, 1)),  # no request overtakes
        ([0, 1], 8, (1, 0)),  # nothing: alone
        ([1, 0, 1], 8, (1, 1)),
        ([1, 1], 1, (1, 1)),
    ],
)
def test_requests_are_taken_from_the_head_as_long_as_their_rows_fit(
    rows: list[int], most: int, taken: tuple[int, int]
) -> None:
    """A run takes requests in order, up to its maximum of rows."""
    assert count_fitting(queue(*rows), most) == taken


@pytest.mark.parametrize(
    ("queues", "policy", "now", "expected"),
    [
        ({}, policy(), 5.0, FOREVER),
        ({A: queue(1, 1)}, policy(), 5.0, BatchDecision(A, 2, 2, 1.0, 2)),
        ({A: queue(1, arrived=2), B: queue(2)}, policy(), 5.0, BatchDecision(B, 1, 2, 1.0, 2)),
        ({None: queue(3, 1)}, policy(), 5.0, BatchDecision(None, 1, 3, 1.0, 3)),
        ({A: queue(1)}, policy(delay=500), 1.25, 0.25),
        ({A: queue(1)}, policy(delay=500), 1.5, BatchDecision(A, 1, 1, 1.0, 1)),
        ({A: queue(4, 4)}, policy(delay=500), 1.0, BatchDecision(A, 2, 8, 1.0, 8)),
        ({A: queue(4, 5)}, policy(delay=500), 1.0, BatchDecision(A, 1, 4, 1.0, 4)),
        ({A: queue(9)}, policy(delay=500), 1.0, BatchDecision(A, 1, 9, 1.0, 9)),
        ({A: queue(0)}, policy(delay=500), 1.0, BatchDecision(A, 1, 0, 1.0, 0)),
        ({None: queue(1)}, policy(delay=500), 1.0, BatchDecision(None, 1, 1, 1.0, 1)),
        (
            {A: queue(1), B: queue(8, arrived=1.1)},
            policy(delay=500),
            1.2,
            BatchDecision(B, 1, 8, 1.1, 8),
        ),
        ({A: queue(1), B: queue(1, arrived=0.9)}, policy(delay=500), 1.2, pytest.approx(0.2)),
    ],
    ids=[
        "nobody waits",
        "one queue",
        "the oldest head",
        "without a key alone",
        "held back",
        "ripe after its delay",
        "full is not held back",
        "full because the next does not fit",
        "larger than the maximum is not held back",
        "nothing is not held back",
        "alone is not held back",
        "ripe before unripe",
        "the first to ripen",
    ],
)
def test_next_batch(
    queues: Mapping[Key, Sequence[Request]], policy: BatchPolicy, now: float, expected: object
) -> None:
    """The oldest head goes first; with a delay, the oldest among those that are full or ripe."""
    assert next_batch(queues, policy, now) == expected


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1.0, BatchDecision(A, 8, 8, 1.0, 8.0)),  # as profiled: as many as the policy allows
        (0.25, BatchDecision(A, 8, 8, 1.0, 2.0)),
        (2.0, BatchDecision(A, 4, 4, 1.0, 8.0)),
        (2.5, BatchDecision(A, 3, 3, 1.0, 7.5)),
        (100.0, BatchDecision(A, 2, 2, 1.0, 200.0)),  # two always gain
    ],
)
def test_of_longer_rows_fewer_share_a_run(length: float, expected: BatchDecision) -> None:
    """The work that is enough for a run is reached sooner, and estimates count by it."""
    waiting = [Request(1.0 + i, 1, length) for i in range(9)]
    assert next_batch({A: waiting}, policy(), 20.0, RowCost(16, 8)) == expected


keys = st.one_of(st.none(), st.sampled_from([A, B, ("c",)]))
queues_of_any_kind = st.dictionaries(
    keys,
    st.tuples(st.floats(0, 100), st.lists(st.integers(0, 12), min_size=1, max_size=12)).map(
        lambda one: queue(*one[1], arrived=one[0])
    ),
    max_size=4,
)


@given(queues_of_any_kind, st.integers(1, 10), st.sampled_from([0.0, 1.0, 20_000.0]))
def test_every_decision_keeps_the_rules(
    queues: dict[Key, list[Request]], most: int, delay: float
) -> None:
    """For any queues, no run is too large or empty, and no wait is longer than the delay."""
    now = 120.0
    cut = next_batch(queues, policy(most, delay), now)
    if isinstance(cut, float):
        assert 0 < cut <= delay / 1000 or (cut == FOREVER and not queues)
        return
    taken = queues[cut.key][: cut.requests]
    assert len(taken) == cut.requests >= 1
    assert sum(one.rows for one in taken) == cut.rows
    assert cut.place == taken[0].arrived
    if cut.requests > 1:
        assert cut.key is not None
        assert cut.rows <= most
        assert all(one.rows for one in taken)
    if not delay:
        assert cut.place == min(each[0].arrived for each in queues.values())


@given(queues_of_any_kind, st.integers(1, 10), st.sampled_from([0.0, 1.0, 20_000.0]))
def test_everyone_is_taken_once_and_in_order(
    queues: dict[Key, list[Request]], most: int, delay: float
) -> None:
    """Repeated decisions empty every queue from its head, so no request starves."""
    now = 0.0
    left = {key: list(each) for key, each in queues.items()}
    for _ in range(200):
        cut = next_batch(left, policy(most, delay), now)
        if isinstance(cut, float):
            if cut == FOREVER:
                break
            now += cut + 1e-9
            continue
        del left[cut.key][: cut.requests]
        if not left[cut.key]:
            del left[cut.key]
    assert not left


def test_key_tells_apart_what_cannot_be_concatenated() -> None:
    """Names, datatypes and row shapes all count, whatever the order of the inputs."""
    narrow, wide = np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)
    different: list[Arrays] = [
        {"a": narrow, "b": wide},
        {"b": narrow, "a": wide},
        {"a": narrow.astype(np.float64), "b": wide},
        {"a": narrow},
        {"b": narrow},
        {"a": np.zeros((1, 2, 1), np.float32)},
    ]
    assert len({rows_and_key(inputs)[1] for inputs in different}) == len(different)


def test_requests_that_differ_in_rows_only_share_a_key() -> None:
    """Axis 0 is what batching adds up."""
    one: Arrays = {"x": np.zeros((1, 3))}
    many: Arrays = {"x": np.ones((5, 3))}
    assert rows_and_key(one)[1] == rows_and_key(many)[1]
    assert (rows_and_key(one)[0], rows_and_key(many)[0]) == (1, 5)


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        ({}, 1),
        ({"x": np.zeros(())}, 1),
        ({"x": np.zeros((2, 3)), "y": np.zeros((4, 3))}, 4),
        ({"x": np.zeros((2, 3)), "y": np.zeros(())}, 2),
    ],
    ids=["no inputs", "a scalar", "inputs that count their rows apart", "a scalar beside rows"],
)
def test_inputs_without_common_rows_run_alone(inputs: Arrays, rows: int) -> None:
    """If axis 0 differs between inputs, the request gets no key to share a run."""
    assert rows_and_key(inputs) == (rows, None)


def test_rows_are_counted_without_batching_too() -> None:
    """How long a run takes depends on its rows, also where requests run one by one."""
    assert rows_and_single_key({"x": np.zeros((40, 3))}) == (40, None)


def test_strings_count_by_what_they_hold() -> None:
    """A model takes longer for a long text than for a word, though each is one element."""
    word = np.array([["word"]], object)
    text = np.array([["word" * 25_000]], object)
    assert count_elements({"text": word}) == 1
    assert 90 < count_elements({"text": text}) < 110
    assert count_elements({"text": word, "x": np.zeros((2, 3))}) == 7


def test_bytes_share_runs_with_those_of_their_length_only() -> None:
    """Elements of another length would have to be padded."""
    (_, three), (_, other), (_, two) = (
        rows_and_key({"x": np.frombuffer(data, f"V{size}")})
        for data, size in ((b"abcdef", 3), (b"ghi", 3), (b"ab", 2))
    )
    assert three == other != two
