"""The loaded versions, and the plan behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import BatchPolicy, Ran
from cohort.errors import ModelNotFound, NotReady, VersionNotFound
from cohort.onnx_engine.batched_session import BatchedSession
from cohort.registry import (
    Catalog,
    Load,
    ModelEntry,
    Source,
    State,
    Unload,
    VersionEntry,
    VersionFailed,
    VersionReady,
    VersionUnloaded,
    actions,
    plan,
    select_versions,
)
from cohort.registry.actions import PlannedModels, plan_model
from cohort.registry.published import PublishedCatalog
from cohort.repository import Found, FoundModel, ModelConfig, Snapshot, VersionPolicy
from tests import onnx_models
from tests.registry.on_disk import RegistryOnDisk, infer

# -- the plan, without a file or a clock


def source(stamp: str = "a") -> Source:
    """Where a version comes from; another stamp means other files."""
    return Source(Path("model.onnx"), stamp, ModelConfig())


def catalog(**models: Mapping[int, tuple[State, str]]) -> Catalog:
    """Return a catalog of versions in the states, loaded from the stamps, that are given."""
    return {
        name: ModelEntry(
            name,
            {n: VersionEntry(n, state, source(stamp)) for n, (state, stamp) in versions.items()},
        )
        for name, versions in models.items()
    }


READY, UNAVAILABLE, UNLOADING = State.READY, State.UNAVAILABLE, State.UNLOADING


@pytest.mark.parametrize(
    ("wants", "have", "actions"),
    [
        pytest.param({"m": {1: "a"}}, {}, [("load", 1)], id="what is new is loaded"),
        pytest.param({"m": {1: "a"}}, {1: (READY, "a")}, [], id="what is there stays"),
        pytest.param({"m": {1: "b"}}, {1: (READY, "a")}, [("load", 1)], id="changed files reload"),
        pytest.param(
            {"m": {1: "a"}}, {1: (UNAVAILABLE, "a")}, [], id="what failed is not tried again"
        ),
        pytest.param(
            {"m": {1: "b"}}, {1: (UNAVAILABLE, "a")}, [("load", 1)], id="unless its files changed"
        ),
        pytest.param(
            {"m": {2: "a"}},
            {1: (READY, "a")},
            [("load", 2)],
            id="the old one stays until the new one is ready",
        ),
        pytest.param(
            {"m": {2: "a"}}, {1: (READY, "a"), 2: (READY, "a")}, [("unload", 1)], id="then it goes"
        ),
        pytest.param(
            {"m": {2: "a"}},
            {1: (READY, "a"), 2: (UNAVAILABLE, "a")},
            [],
            id="and stays for good where the new one failed",
        ),
        pytest.param(
            {"m": {2: "a"}},
            {1: (UNAVAILABLE, "a"), 2: (UNAVAILABLE, "a")},
            [("unload", 1)],
            id="what never got ready goes at once",
        ),
        pytest.param({}, {1: (READY, "a")}, [("unload", 1)], id="a model that is gone goes"),
        pytest.param({}, {1: (UNLOADING, "a")}, [], id="what is going is not told twice"),
    ],
)
def test_the_plan_is_the_difference(
    wants: Mapping[str, Mapping[int, str]],
    have: Mapping[int, tuple[State, str]],
    actions: list[tuple[str, int]],
) -> None:
    """It loads wanted versions, unloads unwanted ones, and makes no model unavailable."""
    sources = {m: {n: source(stamp) for n, stamp in vs.items()} for m, vs in wants.items()}
    planned = plan(sources, catalog(m=have) if have else {})
    assert [(type(one).__name__.lower(), one.number) for one in planned] == actions


@given(
    wants=st.dictionaries(st.integers(1, 5), st.sampled_from("ab"), min_size=1),
    have=st.dictionaries(
        st.integers(1, 5), st.tuples(st.sampled_from(list(State)), st.sampled_from("ab"))
    ),
)
def test_no_plan_takes_the_last_ready_version_before_another_is_ready(
    wants: dict[int, str], have: dict[int, tuple[State, str]]
) -> None:
    """A READY version goes only if a wanted one is READY, whatever is wanted and loaded."""
    planned = plan({"m": {n: source(s) for n, s in wants.items()}}, catalog(m=have))
    gone = {one.number for one in planned if isinstance(one, Unload)}
    ready_before = {n for n, (state, _) in have.items() if state is READY}
    if gone & ready_before:
        assert ready_before - gone


def snapshot(config: ModelConfig, **stamps: str) -> Snapshot:
    """Return a repository with one model `m` whose versions v1, v2, … have these stamps."""
    found = {
        int(name[1:]): Found(Path("model.onnx"), Path(), stamp) for name, stamp in stamps.items()
    }
    return Snapshot({"m": FoundModel("m", Path("m"), found, config)})


def test_a_failed_version_makes_way_for_the_next_older() -> None:
    """With `latest: 1`, a model with a broken newest version still has one."""
    config = ModelConfig(versions=VersionPolicy(latest=1))
    found = snapshot(config, v1="a", v2="a", v3="a")
    failed = VersionEntry(3, UNAVAILABLE, Source(Path("model.onnx"), "a", config))
    assert set(select_versions(found, {})["m"]) == {3}
    assert set(select_versions(found, {"m": ModelEntry("m", {3: failed})})["m"]) == {2, 3}


@pytest.mark.parametrize("broken", [{2, 3}, {1, 2, 3}])
def test_versions_that_failed_one_after_the_other_stay_wanted(broken: set[int]) -> None:
    """Otherwise the older of them would be forgotten and tried again, without end."""
    config = ModelConfig(versions=VersionPolicy(latest=1))
    found = snapshot(config, v1="a", v2="a", v3="a")
    wanted = Source(Path("model.onnx"), "a", config)
    failed = {number: VersionEntry(number, UNAVAILABLE, wanted) for number in broken}
    assert set(select_versions(found, {"m": ModelEntry("m", failed)})["m"]) == {1, 2, 3}


def test_a_failed_version_whose_files_changed_is_wanted_alone_again() -> None:
    """It is tried again before the next older one is asked for."""
    config = ModelConfig(versions=VersionPolicy(latest=1))
    failed = VersionEntry(2, UNAVAILABLE, Source(Path("model.onnx"), "old", config))
    found = snapshot(config, v1="a", v2="new")
    assert set(select_versions(found, {"m": ModelEntry("m", {2: failed})})["m"]) == {2}


def test_versions_that_a_rollout_names_are_wanted_besides() -> None:
    """Those on disk are wanted for every policy."""
    found = snapshot(ModelConfig(versions=VersionPolicy(latest=1)), v1="a", v2="a", v3="a")
    assert set(select_versions(found, {}, pinned={"m": {1, 9}, "other": {2}})["m"]) == {1, 3}


# -- the registry, on real files and real sessions


async def test_what_is_on_disk_gets_ready_and_answers(disk: RegistryOnDisk) -> None:
    """The observer is notified once."""
    disk.put(1)
    await disk.reconcile()
    assert disk.registry.settled
    assert disk.states("m") == {1: READY}
    assert [type(event) for event in disk.events] == [VersionReady]
    assert (await disk.infer("m", [0.0] * 4))[0].shape[0] == 1
    assert disk.batch_events, "the batcher reports to the version's own observer"


async def test_a_lease_keeps_a_version_open_until_it_is_given_back(disk: RegistryOnDisk) -> None:
    """A version that is replaced serves those who hold it, and closes after the last."""
    disk.put(1)
    await disk.reconcile()
    old = disk.registry.lease("m")
    disk.put(2)
    await disk.reconcile()
    assert disk.states("m") == {1: State.UNLOADING, 2: READY}
    assert await infer(old, {"x": np.zeros((1, 4), np.float32)}), "still open"
    old.leases.release()
    assert disk.states("m") == {2: READY}
    assert isinstance(disk.events[-1], VersionUnloaded)
    with pytest.raises(NotReady):
        await infer(old, {"x": np.zeros((1, 4), np.float32)})


async def test_changed_files_are_swapped_in_under_the_same_number(disk: RegistryOnDisk) -> None:
    """The new session answers, the old one is closed."""
    disk.put(1)
    await disk.reconcile()
    before = disk.registry.find("m").engine
    (disk.models / "m/1/notes.txt").write_text("something changed")
    await disk.reconcile()
    after = disk.registry.find("m").engine
    assert after is not None
    assert after is not before
    assert disk.states("m") == {1: READY}


async def test_a_broken_replacement_leaves_the_old_files_serving(disk: RegistryOnDisk) -> None:
    """READY still, with the reason why the newer files are not used; not tried over and over."""
    disk.put(1)
    await disk.reconcile()
    before = disk.registry.find("m").engine
    (disk.models / "m/1/model.onnx").write_bytes(b"broken")
    await disk.reconcile()
    await disk.reconcile()
    entry = disk.registry.version("m", "1")
    assert entry.engine is before
    assert (entry.state, bool(entry.reason)) == (READY, True)
    assert [type(event) for event in disk.events] == [VersionReady, VersionFailed]


async def test_requests_of_different_lengths_share_a_run_where_config_pads_them(
    disk: RegistryOnDisk,
) -> None:
    """Each gets the answer it would have got alone."""
    model = disk.models / "m"
    onnx_models.save(onnx_models.variable_length(), model / "1/model.onnx")
    (model / "config.yaml").write_text(
        "batching: {pad: {input_ids: {axis: 1, value: 0, multiple: 8}}}"
    )
    await disk.reconcile()
    loaded = disk.registry.find("m").engine
    assert isinstance(loaded, BatchedSession)
    loaded._batcher.policy = BatchPolicy()  # whatever batch size paid on this machine
    requests = [np.arange(1, 1 + length, dtype=np.int64)[None] for length in (3, 8, 5, 12)]
    alone = [loaded._prepared.session.run({"input_ids": request})[0] for request in requests]
    together = await asyncio.gather(*(infer(loaded, {"input_ids": one}) for one in requests))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.astype("f4"), other[0].astype("f4"), atol=1e-5)
    runs = [event for event in disk.batch_events if isinstance(event, Ran)]
    assert sorted(run.requests for run in runs) == [1, 3], "12 is in another bucket"
    assert max(run.padding for run in runs) == pytest.approx(1 - 16 / 24)


async def test_a_model_gone_dark_is_named(disk: RegistryOnDisk) -> None:
    """It was READY, is still on disk, and has no READY version."""
    disk.put(1, "good")
    disk.put(1, "bad")
    (disk.models / "bad/1/model.onnx").write_bytes(b"never was good")
    await disk.reconcile()
    assert disk.registry.unavailable == []
    with pytest.raises(NotReady):
        disk.registry.find("bad")
    with pytest.raises(ModelNotFound):
        disk.registry.find("nobody")
    with pytest.raises(VersionNotFound):
        disk.registry.find("good", "2")


async def test_unknown_names_are_not_ready_before_the_first_pass(disk: RegistryOnDisk) -> None:
    """Before the first scan, a missing model cannot be reported as unknown."""
    with pytest.raises(NotReady):
        disk.registry.find("m")


async def test_what_cannot_be_a_name_is_refused_at_once(disk: RegistryOnDisk) -> None:
    """It is refused before a lookup: no disk has such a model."""
    for name in ("../m", "m" * 129, ""):
        with pytest.raises(ModelNotFound):
            disk.registry.find(name)
        with pytest.raises(ModelNotFound):
            disk.registry.reload_model(name)


def test_loads_come_before_unloads() -> None:
    """One pass replaces a model without a gap."""
    planned = plan({"new": {1: source()}}, catalog(old={1: (READY, "a")}))
    assert [type(one) for one in planned] == [Load, Unload]


async def test_closing_lets_everything_go(disk: RegistryOnDisk) -> None:
    """Nothing is left in the catalog, and every engine refuses."""
    disk.put(1)
    await disk.reconcile()
    engine = disk.registry.lease("m")
    engine.leases.release()
    disk.registry.close()
    assert disk.registry.catalog == {}
    with pytest.raises(NotReady):
        engine.submit({"x": np.zeros((1, 4), np.float32)}, lambda outputs, error: None)


async def test_a_model_is_no_longer_dark_once_it_is_ready_or_gone_or_unloaded() -> None:
    """Findings about one catalog are not reported for the next."""
    published = PublishedCatalog()
    published._put("m", VersionEntry(1, State.READY, source()))
    published._once_ready = frozenset({"m"})
    assert published.unavailable == []
    published._put("m", VersionEntry(1, State.UNAVAILABLE, source()))
    assert published.unavailable == ["m"]
    assert published.unavailable == ["m"]
    published._once_ready -= {"m"}  # an operator unloaded it: the catalog is what it was
    assert published.unavailable == []
    published._once_ready |= {"m"}
    assert published.unavailable == ["m"]
    published._put("m", VersionEntry(1, State.READY, source()))
    assert published.unavailable == []


def test_a_remembered_plan_is_made_again_when_anything_changes() -> None:
    """Files, state, an operator's command or a rollout each make it due."""
    found = Found(Path("model.onnx"), Path(), "a")
    config = ModelConfig()
    model = FoundModel("m", Path("m"), {1: found}, config)
    ready = VersionEntry(1, State.READY, Source(found.path, "a", config))
    snapshot, catalog = Snapshot({"m": model}), {"m": ModelEntry("m", {1: ready})}
    plans = PlannedModels()

    def due(
        snapshot: Snapshot = snapshot, catalog: Catalog = catalog, **more: Any
    ) -> list[Load | Unload]:
        assert plans.due("m", snapshot, catalog, **more) == plan_model(
            "m", snapshot, catalog, **more
        )
        return plan_model("m", snapshot, catalog, **more)

    two = FoundModel("m", Path("m"), {1: found, 2: found}, config)
    edited = FoundModel("m", Path("m"), {1: Found(found.path, found.folder, "b")}, config)
    gone = {"m": ModelEntry("m", {1: VersionEntry(1, State.UNLOADING, ready.source)})}
    assert due() == []
    assert due(Snapshot({"m": two})) == [Load("m", 2, Source(found.path, "a", config))]
    assert due() == []
    assert due(Snapshot({"m": edited})) == [Load("m", 1, Source(found.path, "b", config))]
    assert due() == []
    assert due(catalog=gone) == [Load("m", 1, ready.source)]
    assert due(catalog=gone, unloaded={"m"}) == []
    assert due(catalog=gone) == [Load("m", 1, ready.source)]
    assert due(Snapshot()) == [Unload("m", 1)]
    assert due(Snapshot(), {}) == []
    older = {
        "m": ModelEntry("m", {2: VersionEntry(2, State.READY, Source(found.path, "a", config))})
    }
    assert due(Snapshot({"m": two}), older) == []
    assert due(Snapshot({"m": two}), older, pinned={"m": {1}}) == [
        Load("m", 1, Source(found.path, "a", config))
    ]


def test_what_is_as_it_was_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if a scan found it again; a due action is planned until it is done."""
    planned: list[str] = []

    def counted(model: str, *rest: Any) -> list[Load | Unload]:
        planned.append(model)
        return plan_model(model, *rest)

    monkeypatch.setattr(actions, "plan_model", counted)
    config, plans = ModelConfig(), PlannedModels()
    ready = VersionEntry(1, State.READY, Source(Path("x"), "a", config))
    for number in range(3):
        found = Found(Path("x"), Path(), "a")
        snapshot = Snapshot({"m": FoundModel("m", Path("m"), {1: found}, config)})
        catalog = {"m": ModelEntry("m", {1: ready})} if number else {}
        assert bool(plans.due("m", snapshot, catalog)) is not bool(number)
    assert planned == ["m", "m"]
