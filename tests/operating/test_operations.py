"""Operations on models: load, unload, roll back and clear; and reports of usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cohort.errors import InvalidInput, ModelNotFound, NotFound, NotReady, VersionNotFound
from cohort.operating import ProcessPlane
from cohort.registry import UNLOADED, Registry, State
from cohort.rollouts import Rollouts, parse_rollouts
from tests.engines import ControlledEngine, make_catalog, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import health_of, make_control_plane, make_rollouts


def states(registry: Registry) -> dict[int, tuple[State, str]]:
    """Return the state and the reason of each version of `m`."""
    entries = registry.catalog["m"].versions.values()
    return {entry.number: (entry.state, entry.reason) for entry in entries}


async def test_unloading_waits_for_leases() -> None:
    """UNLOADING while a request holds it; then closed, and UNAVAILABLE as unloaded."""
    engine = ControlledEngine()
    registry = make_registry({"m": [make_entry(1, engine)]})
    plane = make_control_plane(registry, make_metrics())
    engine.leases.count = 1
    await plane.unload("m")
    assert states(registry) == {1: (State.UNLOADING, "")}
    before = engine.closed
    engine.leases.release()
    assert (before, engine.closed) == (False, True)
    assert states(registry) == {1: (State.UNAVAILABLE, UNLOADED)}
    assert plane.readiness().ready


async def test_unloading_a_model_that_failed_makes_it_no_problem() -> None:
    """Its reason becomes that of the operator."""
    registry = make_registry({"m": [make_entry(1, reason="broken")]})
    plane = make_control_plane(registry, make_metrics())
    assert (await health_of(plane))["problems"] == ["m/1: failed: broken"]
    await plane.unload("m")
    assert states(registry) == {1: (State.UNAVAILABLE, UNLOADED)}
    assert (await health_of(plane))["status"] == "healthy"


async def test_loading_reconciles_and_waits_for_the_outcome() -> None:
    """The source of a failed version is outdated by then, so that it is retried."""
    registry = make_registry({"m": [make_entry(1, reason="broken")]})
    found: list[str] = []

    async def reconcile() -> None:
        found.append(registry.version("m", "1").source.stamp)
        registry.catalog = make_catalog({"m": [make_entry(1, ControlledEngine())]})

    plane = make_control_plane(registry, make_metrics(), reconcile=reconcile)
    await plane.load("m")
    assert found == [""]
    assert plane.limited_to(None).ready("m") == "1"


async def test_loading_tells_why_a_version_could_not_be_loaded() -> None:
    """It does so even if another version of the model serves."""
    registry = make_registry(
        {"m": [make_entry(1, ControlledEngine()), make_entry(2, reason="broken")]}
    )
    plane = make_control_plane(registry, make_metrics())
    with pytest.raises(NotReady, match="version 2: broken"):
        await plane.load("m")


async def test_a_model_that_is_not_on_disk_cannot_be_loaded_or_unloaded() -> None:
    """ModelNotFound, after a look at the disk where it might have come."""
    registry = make_registry({})
    looked: list[None] = []

    async def reconcile() -> None:
        looked.append(None)

    plane = make_control_plane(registry, make_metrics(), reconcile=reconcile)
    with pytest.raises(ModelNotFound):
        await plane.load("nope")
    assert looked
    with pytest.raises(ModelNotFound):
        await plane.unload("nope")


def test_usage_is_that_of_ready_versions() -> None:
    """Usage is read of all models, of one, or of one version."""
    metrics = make_metrics()
    registry = make_registry(
        {
            "a": [make_entry(1, ControlledEngine()), make_entry(2, ControlledEngine())],
            "b": [make_entry(1, ControlledEngine()), make_entry(2, reason="broken")],
        }
    )
    plane = make_control_plane(registry, metrics)
    metrics.version("a", "2").request("", "OK", 0.5)
    assert [one[:2] for one in plane.limited_to(None).usage()] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
    ]
    assert [one[:2] for one in plane.limited_to(None).usage("a")] == [("a", "1"), ("a", "2")]
    ((_, version, counts),) = plane.limited_to(None).usage("a", "2")
    assert (version, counts.outcomes) == ("2", {("", "OK"): 1})
    with pytest.raises(ModelNotFound):
        plane.limited_to(None).usage("nope")
    with pytest.raises(VersionNotFound):
        plane.limited_to(None).usage("a", "3")
    with pytest.raises(NotReady):
        plane.limited_to(None).usage("b", "2")


# -- rollouts


class Setup:
    """A model with two versions in a rollout, and the number of saves of its decisions."""

    def __init__(self) -> None:
        registry = make_registry({"m": [make_entry(n, ControlledEngine()) for n in (1, 2)]})
        self.saves = 0
        self.rollouts: Rollouts = make_rollouts(registry)
        self.rollouts.apply(
            parse_rollouts(
                "m: {variants: {stable: {version: 1, weight: 9}, new: {version: 2, weight: 1}}}",
                "rollouts.yaml",
            )
        )
        self.plane: ProcessPlane = make_control_plane(
            registry, make_metrics(), self.rollouts, save=self._save
        )

    async def _save(self) -> None:
        self.saves += 1

    def rolled_back(self) -> dict[str, bool]:
        """Return for each variant if it is rolled back."""
        variants = self.rollouts.live["m"].rollout.variants
        return {name: variant.rolled_back for name, variant in variants.items()}


@pytest.fixture
async def rollout() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    setup.rollouts.close()


async def test_rolling_back_and_clearing_are_saved_at_once(rollout: Setup) -> None:
    """Each returns the rollout as it is afterwards."""
    description = await rollout.plane.roll_back("m", "new")
    assert description == rollout.plane.rollout("m")
    assert rollout.rolled_back() == {"stable": False, "new": True}
    assert (await health_of(rollout.plane))["rolled_back"] == {"m/2": "by an operator"}
    assert (await health_of(rollout.plane, frozenset({"n"})))["rolled_back"] == {}
    assert rollout.saves == 1
    await rollout.plane.clear("m", "new")
    assert rollout.rolled_back() == {"stable": False, "new": False}
    assert rollout.saves == 2


async def test_clearing_a_model_clears_every_variant(rollout: Setup) -> None:
    """The call does not name a variant."""
    await rollout.plane.roll_back("m", "new")
    await rollout.plane.clear("m")
    assert rollout.rolled_back() == {"stable": False, "new": False}


async def test_what_cannot_be_rolled_back_is_not_saved(rollout: Setup) -> None:
    """The baseline, an unknown variant, and a model without a rollout are refused."""
    with pytest.raises(InvalidInput, match="baseline"):
        await rollout.plane.roll_back("m", "stable")
    with pytest.raises(NotFound, match="variant 'old' of model 'm' not found"):
        await rollout.plane.roll_back("m", "old")
    with pytest.raises(NotFound, match="has no rollout"):
        await rollout.plane.clear("nope")
    assert rollout.saves == 0


async def test_labels_are_variants(rollout: Setup) -> None:
    """Each label names the version of its variant."""
    assert rollout.plane.limited_to(None).version_for_label("m", "new") == "2"
    with pytest.raises(NotFound):
        rollout.plane.limited_to(None).version_for_label("m", "old")
    with pytest.raises(ModelNotFound):
        rollout.plane.limited_to(None).version_for_label("nope", "new")
    with pytest.raises(NotFound, match="has no rollout"):
        rollout.plane.rollout("nope")
    with pytest.raises(NotFound, match="no shadow"):
        await rollout.plane.shadow_examples("m")


async def test_metrics_are_in_the_format_that_the_reader_prefers() -> None:
    """Prometheus text by default, OpenMetrics where it is accepted."""
    plane = make_control_plane(make_registry({}), make_metrics())
    blocks, content_type = await plane.metrics_text("")
    assert content_type.startswith("text/plain")
    assert blocks[0].startswith(b"# HELP")
    assert b"# EOF" not in blocks[-1]
    blocks, content_type = await plane.metrics_text("application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    assert blocks[-1].endswith(b"# EOF\n")


async def test_scrapes_at_once_are_given_the_same_text() -> None:
    """This holds for every version of the format. A later scrape is written again."""
    metrics = make_metrics()
    metrics.version("m", "1").request("", "OK", 0.1)
    plane = make_control_plane(make_registry({}), metrics)
    accepted = [f"application/openmetrics-text; version=1.{minor}.0" for minor in range(5)]
    at_once = await asyncio.gather(*map(plane.metrics_text, accepted * 20))
    assert len({id(blocks) for blocks, _ in at_once}) == 1
    metrics.version("m", "1").request("", "OK", 0.1)
    later, _ = await plane.metrics_text(accepted[0])
    assert later != at_once[0][0]
