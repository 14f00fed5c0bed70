"""A data plane over one model."""

from __future__ import annotations

import pytest

from cohort.metrics import Metrics
from cohort.registry import State
from cohort.serving import ConcurrencyLimit, DataPlane
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import make_data_plane
from tests.serving.one_model import OUTPUTS, X


@pytest.fixture
def engine() -> ControlledEngine:
    """The engine of version 1 of model "m"."""
    return ControlledEngine([X], OUTPUTS, labels=["cat", "dog"], timeout=5.0)


@pytest.fixture
def metrics() -> Metrics:
    """The metrics of the plane."""
    return make_metrics()


@pytest.fixture
def limit() -> ConcurrencyLimit:
    """The limit of the plane: 3 requests in progress."""
    return ConcurrencyLimit(3)


@pytest.fixture
def plane(engine: ControlledEngine, metrics: Metrics, limit: ConcurrencyLimit) -> DataPlane:
    """A plane over model "m", whose version 2 is broken."""
    entries = [make_entry(1, engine), make_entry(2, state=State.UNAVAILABLE, reason="broken")]
    return make_data_plane(make_registry({"m": entries}), metrics, limit=limit)
