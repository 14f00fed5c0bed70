"""Engines by kind of folder: the file in a version's folder determines which one opens it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from cohort.batching import Outputs, Reply, RunResult
from cohort.errors import InvalidInput, LoadFailed, NotReady, Overloaded
from cohort.onnx_engine import OnnxEngines, VersionOpener
from cohort.operating import ControlPlane
from cohort.process.startup import make_table
from cohort.process.version_table import Footnotes
from cohort.registry import (
    BatchEngine,
    Cancellable,
    EngineDescription,
    LeaseCount,
    Registry,
    RegistryEvent,
    RequestQueue,
    Site,
    Source,
    State,
)
from cohort.repository import Published, scan
from cohort.scheduling import Scheduler
from cohort.session import AssignedNode, CancellationToken, Metadata, Placement, Signature
from cohort.tensors import Arrays, TensorSpec
from tests import onnx_models
from tests.fakes import exposed, make_metrics
from tests.planes import infer, make_control_plane, make_data_plane
from tests.waiting import iterations

KIND = "chain.txt"


class Chain:
    """Answers by another model, which it leases for each request. Implements `BatchEngine`."""

    labels: Sequence[str] = ()
    optional_inputs: Sequence[TensorSpec] = ()
    inline_rows = 1

    def __init__(self, other: str, signature: Signature, site: Site) -> None:
        self._other, self._site = other, site
        self.leases = LeaseCount()
        self.inputs, self.outputs = signature.inputs, signature.outputs
        self.timeout = 30.0
        self.example: Arrays | None = None
        self.example_outputs: Outputs | None = None
        self.closed = False
        self.waiting = 0

    @property
    def by_tensors(self) -> Self:
        return self

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Cancellable:
        if self.closed:
            raise NotReady("this version is being unloaded")
        member = self._site.directory.lease(self._other)

        def answered(*result: object) -> None:
            member.leases.release()
            reply(*result)  # type: ignore[arg-type]

        return member.submit(
            inputs, answered, deadline=deadline, requests=requests, priority=priority
        )

    def room_for(self, priority: int) -> int:
        return 1

    def check_room(self, priority: int) -> None:
        if self.closed:
            raise Overloaded("closed")

    def run_now(self, inputs: Arrays, arrived: float, rows: int, requests: int) -> RunResult | None:
        return None

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        return self

    def describe(self) -> EngineDescription:
        return EngineDescription(Metadata(), Placement(("cpu",), "cpu", (), {}), "cpu")

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        return ()

    def close(self) -> None:
        self.closed = True


class OpenedChain:
    """The name that the file holds, and what callers must know. Implements `OpenedVersion`."""

    published = Published()
    properties: Mapping[str, str] = {}

    def __init__(self, other: str) -> None:
        self.other = other
        x = TensorSpec("x", "FP32", (None, 4))
        self.signature = Signature([x], [TensorSpec("y", "FP32", (None, 2))], ())

    def start(self, site: Site) -> Chain:
        return Chain(self.other, self.signature, site)

    def close(self) -> None:
        """Nothing is open."""


class Chains:
    """Opens folders with a chain.txt. Implements `EngineFactory`."""

    file = KIND

    def open(self, source: Source, token: CancellationToken) -> OpenedChain:
        name = source.path.read_text()
        if name == "nobody":
            raise LoadFailed("it names nobody")
        return OpenedChain(name)

    def check_engines(self) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


class Kinds:
    """A registry of both kinds over a folder."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.scheduler = Scheduler()
        self.events: list[RegistryEvent] = []
        onnx = OnnxEngines(
            wake=self.scheduler.wake,
            count=lambda model, version: lambda event: None,
            opener=VersionOpener(None),
        )
        self.registry = Registry([Chains(), onnx], observe=self.events.append)

    def put_chain(self, name: str, text: str, version: int = 1) -> None:
        folder = self.models / name / str(version)
        folder.mkdir(parents=True)
        (folder / KIND).write_text(text)

    def put_model(self, name: str) -> None:
        onnx_models.save(onnx_models.mlp(), self.models / name / "1" / "model.onnx")

    def state(self, model: str) -> State:
        return self.registry.catalog[model].versions[1].state

    async def load(self) -> None:
        snapshot = await asyncio.to_thread(
            scan, self.models, None, quiet=0, kinds=self.registry.kinds
        )
        self.registry.follow(snapshot)
        await self.registry.loaded()


@pytest.fixture
def kinds(tmp_path: Path) -> Iterator[Kinds]:
    found = Kinds(tmp_path)
    yield found
    found.scheduler.close()


async def test_a_folder_is_served_by_the_engine_of_its_kind(kinds: Kinds) -> None:
    """Requests, metrics, the operators' documents and the table at the start know no difference."""
    kinds.put_model("m")
    kinds.put_chain("c", "m")
    await kinds.load()
    assert {name: entry.ready for name, entry in kinds.registry.catalog.items()} == {
        "c": {1},
        "m": {1},
    }
    metrics = make_metrics()
    plane = make_data_plane(kinds.registry, metrics)
    row: Arrays = {"x": np.ones((1, 4), np.float32)}
    with plane.pick("m") as lease:
        (wanted,) = await infer(lease, row)
    with plane.pick("c") as lease:
        (got,) = await infer(lease, row)
    np.testing.assert_array_equal(got, wanted)
    assert 'model_state{model="c"' in exposed(metrics, kinds.registry.catalog.values())
    control: ControlPlane = make_control_plane(kinds.registry, metrics)
    described = (await control.model(control.limited_to(None), "c"))["versions"][0]
    assert described["state"] == "READY"
    assert "batching" not in described
    assert make_table(kinds.registry.catalog, Footnotes()).row_count == 2
    kinds.registry.close()


async def test_who_leases_a_member_holds_it_until_the_answer(kinds: Kinds) -> None:
    """A member that is unloaded during it closes after it; the next request gets the reason."""
    kinds.put_model("m")
    kinds.put_chain("c", "m")
    await kinds.load()
    plane = make_data_plane(kinds.registry, make_metrics())
    row: Arrays = {"x": np.ones((1, 4), np.float32)}
    with plane.pick("c") as lease:
        answer = asyncio.ensure_future(infer(lease, row))
        await iterations(1)
        kinds.registry.unload_model("m")
        assert kinds.state("m") is State.UNLOADING
        assert len(await answer) == 1
        assert kinds.state("m") is State.UNAVAILABLE
        with pytest.raises(NotReady, match="unloaded"):
            await infer(lease, row)
    kinds.registry.close()


async def test_a_kind_that_nothing_here_serves_is_no_model(tmp_path: Path) -> None:
    """Without its factory, the folder has no model; the others serve."""
    kinds = Kinds(tmp_path)
    kinds.registry = Registry([Chains()], observe=kinds.events.append)
    kinds.put_model("m")
    kinds.put_chain("c", "m")
    kinds.put_chain("d", "nobody")
    await kinds.load()
    assert list(kinds.registry.catalog) == ["c", "d"]
    assert kinds.registry.catalog["d"].versions[1].reason == "it names nobody"
    kinds.scheduler.close()


async def test_the_first_kind_of_a_folder_with_two_counts(kinds: Kinds) -> None:
    """The order is that of the factories."""
    kinds.put_model("m")
    (kinds.models / "m/1" / KIND).write_text("m")
    await kinds.load()
    assert isinstance(kinds.registry.catalog["m"].versions[1].engine, Chain)
    kinds.registry.close()


async def test_a_model_that_takes_no_tensors_says_so(
    kinds: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of tensors are refused, and so is a lease."""
    monkeypatch.setattr(Chain, "by_tensors", None)
    kinds.put_model("m")
    kinds.put_chain("c", "m")
    await kinds.load()
    with pytest.raises(InvalidInput, match="does not accept tensors"):
        make_data_plane(kinds.registry, make_metrics()).pick("c")
    with pytest.raises(InvalidInput, match="does not accept tensors"):
        kinds.registry.lease("c")
    kinds.registry.close()


def _is_engine(chain: Chain) -> BatchEngine:
    """For the type checker."""
    return chain
