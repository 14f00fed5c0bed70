"""A request's hold on a version: from the choice to the count."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from app.data_plane import DataPlane, Lease
from app.errors import (
    Cancelled,
    CohortError,
    InferenceFailed,
    InvalidInput,
    ModelNotFound,
    NotReady,
    Overloaded,
    VersionNotFound,
)
from app.metrics import Metrics
from app.registry import State
from app.tensors import Arrays, TensorSpec
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import make_data_plane
from tests.waiting import iterations

X = TensorSpec("x", "FP32", (None, 2))
OUTPUTS = [
    TensorSpec("y", "FP32", (None, 2)),
    TensorSpec("maps", "seq(map(int64,tensor(float)))", None),
    TensorSpec("z", "INT64", (None,)),
]
ROW: Arrays = {"x": np.ones((1, 2), np.float32)}


@pytest.fixture
def engine() -> ControlledEngine:
    return ControlledEngine([X], OUTPUTS, labels=["cat", "dog"], timeout=5.0)


@pytest.fixture
def metrics() -> Metrics:
    return make_metrics()


@pytest.fixture
def plane(engine: ControlledEngine, metrics: Metrics) -> DataPlane:
    entries = [make_entry(1, engine), make_entry(2, state=State.UNAVAILABLE, reason="broken")]
    return make_data_plane(make_registry({"m": entries}), metrics, max_concurrency=3)


def outcomes(metrics: Metrics, version: str = "1") -> dict[str, int]:
    return {code: count for (_, code), count in metrics.version("m", version).outcomes.items()}


def test_a_lease_shows_plain_specs_and_holds_the_engine(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """Until it is closed, once; closing it again changes nothing."""
    lease = plane.pick("m")
    assert (lease.model, lease.version, lease.variant) == ("m", "1", "")
    assert (lease.inputs, lease.outputs) == ([X], OUTPUTS)
    assert lease.labels == ["cat", "dog"]
    assert engine.leases.count == plane.open_leases == 1
    lease.close()
    lease.close(InferenceFailed("late"))
    assert engine.leases.count == plane.open_leases == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, "OK"),
        (InvalidInput("no"), "InvalidInput"),
        (asyncio.CancelledError(), "Cancelled"),
        (ZeroDivisionError(), "InferenceFailed"),
    ],
)
def test_a_lease_is_counted_by_what_the_caller_saw(
    plane: DataPlane, metrics: Metrics, error: BaseException | None, code: str
) -> None:
    """A bug is an InferenceFailed, as its response says."""
    plane.pick("m").close(error)
    assert outcomes(metrics) == {code: 1}


def test_the_tighter_of_two_deadlines_counts(plane: DataPlane, engine: ControlledEngine) -> None:
    """The caller's and the model's own, from the arrival of the request on."""
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
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """An engine may rely on names, datatypes and shapes."""
    with plane.pick("m") as lease, pytest.raises(InvalidInput, match="takes shape"):
        lease.submit({"x": np.ones((1, 3), np.float32)}, lambda outputs, error: None)
    assert not engine.requests


def test_only_outputs_that_can_be_sent_are_selected(plane: DataPlane) -> None:
    """All of them where none is named; a name that is not an output, or cannot be, is refused."""
    with plane.pick("m") as lease:
        assert list(lease.select(None)) == [0, 2]
        assert list(lease.select(["z", "y"])) == [2, 0]
        with pytest.raises(InvalidInput, match="output 'w' not found"):
            lease.select(["w"])
        with pytest.raises(InvalidInput, match="cannot be sent"):
            lease.select(["maps"])


async def test_infer_waits_for_the_reply(plane: DataPlane, engine: ControlledEngine) -> None:
    """It gives the outputs, or raises the error."""
    for error in (None, InferenceFailed("the run failed")):
        with plane.pick("m") as lease:
            waiting = asyncio.ensure_future(lease.infer(ROW))
            await iterations(1)
            engine.answer(error)
            if error is None:
                assert (await waiting)[0].tolist() == [[2.0, 2.0]]
            else:
                with pytest.raises(InferenceFailed, match="the run failed"):
                    await waiting


async def test_cancelling_infer_gives_the_place_up(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """The engine hears of it, so that nobody runs for a caller who left."""
    lease = plane.pick("m")
    waiting = asyncio.ensure_future(lease.infer(ROW))
    await iterations(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert engine.requests[-1].cancelled
    lease.close(Cancelled("the caller left"))


def test_a_closed_lease_submits_nothing(plane: DataPlane, engine: ControlledEngine) -> None:
    """Its version may be gone already."""
    lease = plane.pick("m")
    lease.close()
    with pytest.raises(NotReady):
        lease.submit(ROW, lambda outputs, error: None)
    assert not engine.requests


# -- who gets one


@pytest.mark.parametrize(
    ("model", "version", "error"),
    [
        ("n", None, ModelNotFound),
        ("m", "7", VersionNotFound),
        ("m", "x", VersionNotFound),
        ("m", "2", NotReady),
    ],
)
def test_nobody_answers_for_what_is_not_there(
    plane: DataPlane, metrics: Metrics, model: str, version: str | None, error: type[CohortError]
) -> None:
    """It is counted under the model's name, unless that is one that callers made up."""
    with pytest.raises(error):
        plane.pick(model, version)
    assert outcomes(metrics, "") == ({} if model == "n" else {error.__name__: 1})
    assert plane.open_leases == 0


def test_the_only_model_needs_no_name(plane: DataPlane) -> None:
    """A request that names none gets it."""
    assert plane.pick(None).model == "m"


def test_the_limit_counts_leases_and_bodies_that_are_being_read(
    plane: DataPlane, metrics: Metrics
) -> None:
    """Whoever is beyond it is refused at once, and may come back."""
    leases = [plane.pick("m"), plane.pick("m")]
    plane.begin_reading()
    with pytest.raises(Overloaded, match="3 requests in progress"):
        plane.pick("m")
    with pytest.raises(Overloaded):
        plane.begin_reading()
    plane.end_reading()
    leases.append(plane.pick("m"))
    assert metrics.version("m", "").rejected == {"Overloaded": 1}
    for lease in leases:
        lease.close()


def test_a_plane_that_is_closed_takes_no_more_and_finishes_what_it_has(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """New requests hear that the server is shutting down; a lease goes on to its reply."""
    answered: list[object] = []
    lease: Lease = plane.pick("m")
    lease.submit(ROW, lambda outputs, error: answered.append(outputs))
    plane.close()
    for refused in (lambda: plane.pick("m"), plane.begin_reading):
        with pytest.raises(NotReady, match="the server is shutting down"):
            refused()
    engine.answer_all()
    assert len(answered) == 1
    lease.close()


def test_versions_are_looked_up_again_when_the_catalog_changes(
    engine: ControlledEngine, metrics: Metrics
) -> None:
    """A version that was replaced gets no new requests."""
    registry = make_registry({"m": [make_entry(1, engine)]})
    plane = make_data_plane(registry, metrics)
    plane.pick("m").close()
    newer = ControlledEngine([X], OUTPUTS)
    registry.catalog = make_registry({"m": [make_entry(2, newer)]}).catalog
    with plane.pick("m") as lease:
        assert lease.version == "2"
        assert (newer.leases.count, engine.leases.count) == (1, 0)
