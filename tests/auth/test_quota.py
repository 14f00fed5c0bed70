"""The number of requests per second that pass, on a clock that the test sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.auth import TokenBucket

RATES = st.floats(0.001, 1e6)
STEPS = st.lists(st.floats(0, 5), max_size=200)


def run(bucket: TokenBucket, steps: list[float], start: float = 1000.0) -> list[float]:
    """The times at which requests passed that came after these seconds each."""
    now, passed = start, []
    for step in steps:
        now += step
        if bucket.take(now) == 0:
            passed.append(now)
    return passed


@given(RATES, STEPS)
def test_no_span_has_more_than_its_rate_and_one_second_s_worth(
    rate: float, steps: list[float]
) -> None:
    """This holds for any times of requests and any span between them."""
    passed = run(TokenBucket(rate), steps)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            allowed = rate * (passed[last] - passed[first]) + max(1.0, rate)
            assert last - first + 1 <= allowed * (1 + 1e-6) + 1e-3


@given(RATES, STEPS)
def test_who_waits_as_told_is_let_in(rate: float, steps: list[float]) -> None:
    """It is not let in earlier, and a refused request uses no token."""
    bucket, now = TokenBucket(rate), 1000.0
    for step in [0.0, *steps]:
        now += step
        wait = bucket.take(now)
        assert wait >= 0
        if wait > 1e-5:
            assert bucket.take(now) == wait
            assert bucket.take(now + wait * 0.5) > 0
            now += wait + 1e-6
            assert bucket.take(now) == 0


@given(st.integers(1, 500))
def test_a_second_s_worth_may_come_at_once(rate: int) -> None:
    """After a second without a request the same number may pass at once."""
    bucket = TokenBucket(rate)
    assert len(run(bucket, [0.0] * (2 * rate))) == rate
    assert len(run(bucket, [1.0] + [0.0] * (2 * rate))) == rate


def test_a_rate_below_one_lets_single_requests_pass() -> None:
    """One now, the next when its share of a second has come round."""
    assert run(TokenBucket(0.1), [0, 1, 8, 1, 9.5, 0.5], start=0) == [0, 10, 20]
