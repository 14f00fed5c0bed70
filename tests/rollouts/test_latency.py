"""A quantile of a stream."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.rollouts.latency import Latency


def test_the_quantile_is_within_a_bucket_and_never_too_low() -> None:
    """It is 5 % above at most; too low a p95 would find a good variant slow."""
    random = np.random.default_rng(1)
    values = random.lognormal(-7, 1, 5000)
    latency = Latency()
    for value in values:
        latency.add(float(value))
    exact = float(np.quantile(values, 0.95))
    assert exact <= latency.quantile(0.95) <= exact * 1.06


def test_it_follows_what_changes() -> None:
    """New values outweigh old ones within a few ticks."""
    latency = Latency()
    for seconds in (0.001, 0.01):
        for _ in range(8):
            for _ in range(1000):
                latency.add(seconds)
            latency.forget()
    assert latency.quantile(0.95) == pytest.approx(0.01, rel=0.06)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_no_value_is_out_of_bounds(seconds: float) -> None:
    """Clocks may stand still, and a model may never end."""
    latency = Latency()
    latency.add(seconds)
    assert latency.quantile(0.95) > 0
