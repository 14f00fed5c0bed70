"""Loads side by side: how many, in which order, and for how long."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from cohort.errors import LoadFailed
from cohort.onnx_engine import VersionOpener, factory
from cohort.onnx_engine.preparation import PreparedVersion, prepare_version
from cohort.registry import OpenedVersion, Source, State, loading
from cohort.registry.loading import PLACES, LoadThreads
from cohort.session import CancellationToken
from tests.registry.on_disk import RegistryOnDisk
from tests.waiting import PATIENCE, until, wait_until

READY = State.READY

A_DAY = 86_400.0


@dataclass
class Puppet:
    """A load that ends when it is released, and where it `heeds`, when it is cancelled."""

    heeds: bool = False
    token: CancellationToken = field(default_factory=CancellationToken)
    begun: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def prepare(self) -> OpenedVersion:
        self.begun.set()
        with self.token.calling(self.released.set if self.heeds else lambda: None):
            assert self.released.wait(PATIENCE)
        if self.heeds:
            self.token.check()
        return cast(OpenedVersion, self)

    def close(self) -> None:
        self.closed.set()

    def load(self, threads: LoadThreads, number: int, seconds: float = A_DAY) -> asyncio.Task[Any]:
        self.token.enter("holding")  # before its thread begins, however short its time is
        run = threads.run(("m", number), self.prepare, self.token, seconds=seconds)
        return asyncio.create_task(run)


@pytest.fixture
def never_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No load gives up its place."""
    monkeypatch.setattr(loading, "LONG_SECONDS", A_DAY)


@pytest.mark.usefixtures("never_long")
async def test_few_load_at_once_and_the_next_begins_when_one_ends() -> None:
    """Loads begin in the order in which they came."""
    threads = LoadThreads()
    puppets = [Puppet() for _ in range(PLACES + 1)]
    tasks = [puppet.load(threads, number) for number, puppet in enumerate(puppets)]
    *first, last = puppets
    await until(lambda: all(one.begun.is_set() for one in first))
    assert not last.begun.is_set()
    puppets[0].released.set()
    await until(last.begun.is_set)
    for one in puppets:
        one.released.set()
    assert [(await task)[0] for task in tasks] == puppets


async def test_a_load_that_takes_long_gives_up_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other loads begin, up to a limit; it continues, and its place is given back once."""
    monkeypatch.setattr(loading, "LONG_SECONDS", 0.05)
    monkeypatch.setattr(loading, "MAX_LOADS", 4)
    threads = LoadThreads()
    puppets = [Puppet() for _ in range(5)]
    tasks = [puppet.load(threads, number) for number, puppet in enumerate(puppets)]
    await until(lambda: all(one.begun.is_set() for one in puppets[:4]))
    assert not puppets[4].begun.is_set()
    puppets[0].released.set()
    await until(puppets[4].begun.is_set)
    for one in puppets:
        one.released.set()
    await asyncio.gather(*tasks)
    assert threads._places._value == PLACES


async def test_a_load_ends_when_its_time_is_over() -> None:
    """A load over its time limit fails with its last stage; the log reported it before."""
    puppet = Puppet(heeds=True)
    with capture_logs() as logs, pytest.raises(LoadFailed) as failed:
        await puppet.load(LoadThreads(), 1, 0.05)
    assert (
        str(failed.value) == "loading took longer than 0.05 s (load_timeout_s); last stage: holding"
    )
    assert [(one["event"], one["stage"]) for one in logs] == [("load takes long", "holding")]


async def test_waiting_for_others_is_none_of_a_loads_time() -> None:
    """Neither a wait for memory nor one for a turn counts: many models at once make none late."""
    puppet = Puppet(heeds=True)

    def prepare() -> OpenedVersion:
        with puppet.token.waiting("waiting for its turn to run"):
            assert puppet.released.wait(PATIENCE)
        return cast(OpenedVersion, puppet)

    run = LoadThreads().run(("m", 1), prepare, puppet.token, seconds=0.1)
    task = asyncio.create_task(run)
    await until(lambda: puppet.token.waited > 0.5)
    assert not task.done()
    puppet.released.set()
    assert (await task)[0] is cast(OpenedVersion, puppet)


async def test_a_load_that_cannot_be_ended_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reports that, its version is closed at its end, and is loaded again only then."""
    monkeypatch.setattr(loading, "ENDING_SECONDS", 0.01)
    threads, stubborn, again = LoadThreads(), Puppet(), Puppet()
    with pytest.raises(LoadFailed, match="last stage: holding, which cannot be cancelled"):
        await stubborn.load(threads, 1, 0.05)
    with pytest.raises(LoadFailed, match="an earlier load"):
        await again.load(threads, 1)
    other = Puppet()
    other.released.set()
    await other.load(threads, 2)
    stubborn.released.set()
    await until(stubborn.closed.is_set)
    again.released.set()
    assert (await again.load(threads, 1))[0] is again


@pytest.mark.parametrize("heeds", [True, False])
async def test_what_a_cancelled_load_opened_is_closed(
    heeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds if it ends at once and if it is left."""
    monkeypatch.setattr(loading, "ENDING_SECONDS", 0.01)
    puppet = Puppet(heeds=heeds)
    task = puppet.load(LoadThreads(), 1)
    await until(puppet.begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    puppet.released.set()
    assert puppet.token.reason
    if not heeds:
        await until(puppet.closed.is_set)


async def test_a_load_that_waits_for_its_place_is_cancelled_at_once() -> None:
    """A load that waits for its place can be cancelled at once, and frees its place."""
    threads = LoadThreads()
    held = [Puppet() for _ in range(PLACES)]
    tasks = [puppet.load(threads, number) for number, puppet in enumerate(held)]
    await until(lambda: all(one.begun.is_set() for one in held))
    waiting = Puppet()
    task = waiting.load(threads, 9)
    await asyncio.wait({task}, timeout=0.01)
    task.cancel()
    await asyncio.wait({task})
    assert not waiting.begun.is_set()
    for one in held:
        one.released.set()
    await asyncio.gather(*tasks)
    assert threads._places._value == PLACES


async def test_errors_are_the_loads_own() -> None:
    """The load raises each of them; an exit of its thread does not end the event loop."""

    def fails(error: BaseException) -> Callable[[], OpenedVersion]:
        def prepare() -> OpenedVersion:
            raise error

        return prepare

    for error, kind in (
        (LoadFailed("no"), LoadFailed),
        (MemoryError(), MemoryError),
        (SystemExit(1), RuntimeError),
    ):
        with pytest.raises(kind):
            await LoadThreads().run(("m", 1), fails(error), CancellationToken(), seconds=A_DAY)


# -- the registry, while one version's load is held


@dataclass
class Held:
    """Holds loads of `m` at a version's number, until they are released or cancelled."""

    number: int = 1
    begun: int = 0
    token: CancellationToken = field(default_factory=CancellationToken)
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(
        self, source: Source, opener: VersionOpener, token: CancellationToken
    ) -> PreparedVersion:
        if source.path.parts[-3:-1] == ("m", str(self.number)) and not self.released.is_set():
            self.begun += 1
            self.token = token
            token.enter("held")
            with token.calling(self.released.set):
                assert self.released.wait(PATIENCE)
            token.check()
        return prepare_version(source, opener, token)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    holding = Held()
    monkeypatch.setattr(factory, "prepare_version", holding)
    yield holding
    holding.released.set()


async def begin_to_load(disk: RegistryOnDisk, held: Held) -> None:
    """Put a version whose load is held, and wait until it has begun."""
    disk.put(1)
    await disk.follow()
    await until(lambda: held.begun)


async def test_a_load_holds_up_no_other(disk: RegistryOnDisk, held: Held) -> None:
    """Loads found with it, later ones, and waits for them continue."""
    for name in ("a", "m", "z"):
        disk.put(1, name)
    await disk.follow()
    await disk.registry.loaded("a")
    await disk.registry.loaded("z")
    disk.put(1, "zz")
    await disk.follow()
    await disk.registry.loaded("zz")
    ready = {name: disk.states(name)[1] for name in ("a", "m", "z", "zz")}
    assert ready == {"a": READY, "m": State.LOADING, "z": READY, "zz": READY}
    assert disk.registry.loading == ["m 1 (held)"]
    assert not disk.registry.settled
    held.released.set()
    await disk.registry.first_loaded()
    assert disk.states("m") == {1: READY}


async def test_the_first_pass_is_over_without_what_came_later(
    disk: RegistryOnDisk, held: Held
) -> None:
    """A process gets ready even if models are added all the time."""
    disk.put(1, "a")
    await disk.follow()
    disk.put(1)
    await disk.follow()
    await disk.registry.first_loaded()
    assert disk.states("m") == {1: State.LOADING}


async def test_a_load_without_end_fails_and_is_not_begun_again(
    disk: RegistryOnDisk, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is settled then; the reason contains the last stage."""
    start = LoadThreads._start

    def start_and_wait(*arguments: Any) -> Any:
        """Let its time begin once its thread has, however busy the machine is."""
        outcome = start(*arguments)
        wait_until(lambda: held.token.stage == "held")
        return outcome

    monkeypatch.setattr(LoadThreads, "_start", start_and_wait)
    disk.put(1)
    (disk.models / "m/config.yaml").write_text("load_timeout_s: 0.05")
    await disk.reconcile()
    await disk.reconcile()
    entry = disk.registry.version("m", "1")
    assert (entry.state, held.begun) == (State.UNAVAILABLE, 1)
    assert "(load_timeout_s); last stage: held" in entry.reason
    assert disk.registry.settled


async def test_a_change_ends_the_load_of_what_was_before(disk: RegistryOnDisk, held: Held) -> None:
    """An operator who fixes a model does not wait until its load times out."""
    await begin_to_load(disk, held)
    (disk.models / "m/1/notes.txt").write_text("something changed")
    await disk.reconcile()
    assert held.token.reason
    assert disk.states("m") == {1: READY}


async def test_what_leaves_the_disk_while_it_loads_is_forgotten(
    disk: RegistryOnDisk, held: Held
) -> None:
    """Its load is cancelled; back again, it is loaded."""
    await begin_to_load(disk, held)
    shutil.rmtree(disk.models / "m")
    await disk.reconcile()
    assert disk.registry.catalog == {}
    disk.put(1)
    await disk.reconcile()
    assert disk.states("m") == {1: READY}


async def test_a_newer_version_takes_over_while_the_older_still_loads(
    disk: RegistryOnDisk, held: Held
) -> None:
    """The load that is no longer wanted is cancelled once the newer one serves."""
    await begin_to_load(disk, held)
    disk.put(2)
    await disk.reconcile()
    assert disk.states("m") == {2: READY}
    assert held.token.reason


async def test_closing_waits_for_no_load(disk: RegistryOnDisk, held: Held) -> None:
    """They are cancelled, and nothing is left."""
    await begin_to_load(disk, held)
    disk.registry.close()
    assert disk.registry.catalog == {}
    await disk.registry.loaded()
    assert held.token.reason
    assert disk.registry.catalog == {}
