"""The choice of a version, the concurrency limit, and closing."""

from __future__ import annotations

import pytest

from cohort.errors import CohortError, ModelNotFound, NotReady, Overloaded, VersionNotFound
from cohort.metrics import Metrics
from cohort.serving import ConcurrencyLimit, DataPlane, Lease
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.planes import make_data_plane
from tests.serving.one_model import OUTPUTS, ROW, X, outcomes


@pytest.mark.parametrize(
    ("model", "version", "error"),
    [
        ("n", None, ModelNotFound),
        ("m", "7", VersionNotFound),
        ("m", "x", VersionNotFound),
        ("m", "2", NotReady),
    ],
)
def test_an_unknown_model_or_version_is_refused(
    plane: DataPlane,
    metrics: Metrics,
    limit: ConcurrencyLimit,
    model: str,
    version: str | None,
    error: type[CohortError],
) -> None:
    """It is counted under the model's name if the model exists."""
    with pytest.raises(error):
        plane.pick(model, version)
    assert outcomes(metrics, "") == ({} if model == "n" else {error.__name__: 1})
    assert limit.leases == 0


def test_the_only_model_answers_requests_that_name_none(plane: DataPlane) -> None:
    """No default model is set."""
    assert plane.pick(None).model == "m"


def test_the_concurrency_limit_counts_leases_and_bodies_being_read(
    plane: DataPlane, metrics: Metrics
) -> None:
    """Requests above it are refused until one of those ends."""
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


def test_a_closed_plane_refuses_new_requests_and_finishes_open_ones(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """New requests are refused with NotReady; a lease stays open until its reply."""
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


def test_a_large_body_is_not_read_for_a_full_queue(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """The path must name the model; reading the body would cost more than many refusals."""
    plane.pick("m").close()
    engine.refusal = Overloaded("the model's queue is full")
    for version in (None, "7"):  # without earlier requests, so that nothing is known of it
        plane.begin_reading(None, version)
        plane.end_reading()
    with pytest.raises(Overloaded, match="the model's queue is full"):
        plane.begin_reading("m")
    with plane.pick("m") as lease, pytest.raises(Overloaded):
        lease.check_room()
    plane.begin_reading("m", "7")
    plane.end_reading()
    engine.refusal = None
    plane.begin_reading("m")
    plane.end_reading()
