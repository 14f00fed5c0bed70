"""Leases: a request holds its version until it is answered, and is counted once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from cohort.auth import ApiKey, Caller
from cohort.connections.memory import MemoryBudget
from cohort.errors import (
    Cancelled,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
    RunRefused,
)
from cohort.metrics import Metrics
from cohort.serving import ConcurrencyLimit, DataPlane, RequestContext
from tests.engines import ControlledEngine
from tests.fakes import exposed
from tests.serving.one_model import OUTPUTS, ROW, X, outcomes


def test_a_lease_has_plain_specs_and_holds_the_engine(
    plane: DataPlane, engine: ControlledEngine, limit: ConcurrencyLimit
) -> None:
    """It holds it until it is closed; closing it again changes nothing."""
    lease = plane.pick("m")
    assert (lease.model, lease.version, lease.variant) == ("m", "1", "")
    assert (lease.inputs, lease.outputs) == ([X], OUTPUTS)
    assert lease.labels == ["cat", "dog"]
    assert engine.leases.count == limit.leases == 1
    lease.close()
    lease.close(InferenceFailed("late"))
    assert engine.leases.count == limit.leases == 0


def test_a_request_is_counted_until_its_run_is_over(
    plane: DataPlane, engine: ControlledEngine, limit: ConcurrencyLimit
) -> None:
    """A run cannot be stopped at once: by leaving, a caller would have any number of them."""
    caller = Caller("c")
    caller.follow(ApiKey(name="c", sha256="0" * 64, concurrency=1))
    assert caller.enter()
    lease = plane.pick("m", context=RequestContext(caller=caller))
    lease.submit(ROW, lambda *_: None)
    (ticket,) = engine.requests
    ticket.running = True
    budget = MemoryBudget(1000)
    with budget.hold() as hold:
        hold.set(100)
        lease.leave()
        lease.close(Cancelled("the client disconnected or cancelled"), hold)
    caller.leave()  # as who counted it does
    assert (limit.leases, caller.in_flight, budget.used) == (1, 1, 100)
    with pytest.raises(Overloaded, match="already has 1 requests"):
        caller.enter()
    ticket.over()
    assert (limit.leases, caller.in_flight, budget.used) == (0, 0, 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, "OK"),
        (InvalidInput("no"), "InvalidInput"),
        (asyncio.CancelledError(), "Cancelled"),
        (ZeroDivisionError(), "InferenceFailed"),
    ],
)
def test_a_lease_is_counted_by_its_outcome(
    plane: DataPlane, metrics: Metrics, error: BaseException | None, code: str
) -> None:
    """A bug is counted as InferenceFailed, as in its response."""
    plane.pick("m").close(error)
    assert outcomes(metrics) == {code: 1}


def test_an_input_that_the_run_refused_is_counted_apart(plane: DataPlane, metrics: Metrics) -> None:
    """Its caller gets an InvalidInput, as for an input refused before the run."""
    for error in (InvalidInput("no"), RunRefused("no such index"), RunRefused("no such index")):
        plane.pick("m").close(error)
    assert outcomes(metrics) == {"InvalidInput": 3}
    assert 'model_run_refused_total{model="m",variant="",version="1"} 2.0' in exposed(metrics)


def test_no_refused_run_is_counted_as_none(plane: DataPlane, metrics: Metrics) -> None:
    """The series exists from the first request on; otherwise a rate misses the first refusal."""
    plane.pick("m").close()
    assert 'model_run_refused_total{model="m",variant="",version="1"} 0.0' in exposed(metrics)


def test_the_earlier_of_two_deadlines_applies(plane: DataPlane, engine: ControlledEngine) -> None:
    """The deadlines are the caller's and the model's own, from the arrival of the request."""
    for timeout, wanted in ((1.0, 1.0), (60.0, 5.0), (None, 5.0)):
        with plane.pick("m") as lease:
            lease.submit(ROW, lambda outputs, error: None, timeout=timeout)
            arrived = engine.requests[-1].deadline - wanted
            assert lease.seconds >= 0
            assert engine.requests[-1].timeout == wanted
        with plane.pick("m") as later:
            later.submit(ROW, lambda outputs, error: None, timeout=timeout)
        assert engine.requests[-1].deadline - wanted >= arrived


def test_inputs_are_checked_before_the_engine_sees_them(
    plane: DataPlane, engine: ControlledEngine, limit: ConcurrencyLimit
) -> None:
    """An engine may rely on names, datatypes and shapes."""
    with plane.pick("m") as lease, pytest.raises(InvalidInput, match="must have shape"):
        lease.submit({"x": np.ones((1, 3), np.float32)}, lambda outputs, error: None)
    assert not engine.requests


def test_more_outputs_than_the_model_has_are_refused(plane: DataPlane) -> None:
    """A request may not name more outputs than the model has, even repeated ones."""
    with plane.pick("m") as lease:
        assert list(lease.select(["y", "y", "z"])) == [0, 0, 2]
        with pytest.raises(InvalidInput, match="names 4 outputs, but the model has 3"):
            lease.select(["y"] * 4)
        with pytest.raises(InvalidInput, match="output 'w' not found"):
            lease.select([*["y"] * 3, "w"])


def test_only_transportable_outputs_are_selected(plane: DataPlane) -> None:
    """The default is all of them; an unknown or non-transportable output is refused."""
    with plane.pick("m") as lease:
        assert list(lease.select(None)) == [0, 2]
        assert list(lease.select(["z", "y"])) == [2, 0]
        with pytest.raises(InvalidInput, match="output 'w' not found"):
            lease.select(["w"])
        with pytest.raises(InvalidInput, match="cannot be sent"):
            lease.select(["maps"])


def test_a_closed_lease_submits_nothing(plane: DataPlane, engine: ControlledEngine) -> None:
    """Its version may be gone already."""
    lease = plane.pick("m")
    lease.close()
    with pytest.raises(NotReady):
        lease.submit(ROW, lambda outputs, error: None)
    assert not engine.requests
