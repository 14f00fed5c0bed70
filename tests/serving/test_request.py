"""Exchanges: a request takes the same steps whatever its protocol, and ends once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec import LARGE_BYTES
from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    forget_locals,
)
from cohort.metrics import Metrics
from cohort.serving import (
    AwaitedReply,
    ConcurrencyLimit,
    DataPlane,
    Exchange,
    Lease,
    Outputs,
    RequestContext,
    ServedVersion,
)
from cohort.serving.observing import RanLease
from cohort.tensors import Arrays
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import make_data_plane
from tests.serving.one_model import OUTPUTS, ROW, X, outcomes
from tests.waiting import iterations, until

Broken = Exception | None


@dataclass
class Asked:
    """A call whose steps fail or take long on demand.

    decoding, encoding: The error that they raise; None: they succeed.
    work: As `decode_work`.
    large: As `is_large`.
    """

    model: str | None = "m"
    version: str | None = None
    label: str | None = None
    timeout: float | None = None
    beside: int = 0
    parameters: Mapping[str, object] = field(default_factory=dict)
    decoding: Broken = None
    encoding: Broken = None
    work: int = 0
    large: bool = False

    def decode_work(self, lease: Lease) -> int:
        return self.work

    def is_large(self, outputs: Outputs) -> bool:
        return self.large

    def decode(self, lease: Lease) -> Arrays:
        if self.decoding is not None:
            raise self.decoding
        return ROW

    def encode(self, lease: Lease, outputs: Outputs) -> str:
        if self.encoding is not None:
            raise self.encoding
        return f"version {lease.version}: {outputs[0].tolist()}"


@dataclass
class Noted:
    """A reply that notes what it gets."""

    got: list[str] = field(default_factory=list)
    ends: list[CohortError | None] = field(default_factory=list)

    def part(self, answer: str) -> None:
        assert not self.ends
        self.got.append(answer)

    def end(self, error: CohortError | None) -> None:
        self.ends.append(error)

    @property
    def codes(self) -> list[str]:
        return ["OK" if error is None else error.code for error in self.ends]


ANSWER = "version 1: [[2.0, 2.0]]"


def reader(call: Asked, error: Broken = None) -> Callable[[bytes], Asked]:
    def read(body: bytes) -> Asked:
        if error is not None:
            raise error
        return call

    return read


def ask(
    plane: DataPlane,
    call: Asked | None = None,
    *,
    reply: Any = None,
    context: RequestContext | None = None,
    reading: Broken = None,
    long: bool = False,
) -> tuple[Exchange[str], Noted]:
    """Begin an exchange."""
    reply = Noted() if reply is None else reply
    exchange = Exchange(plane, context or RequestContext(), reply, plane.memory.hold())
    exchange.read(reader(call or Asked(), reading), b"body", model="m", long=long)
    return exchange, reply


async def test_an_answer_is_one_part_and_an_end(
    plane: DataPlane, engine: ControlledEngine, metrics: Metrics, limit: ConcurrencyLimit
) -> None:
    """A short request runs at once, is counted, and then holds nothing."""
    _, reply = ask(plane)
    engine.answer()
    assert (reply.got, reply.codes) == ([ANSWER], ["OK"])
    assert outcomes(metrics) == {"OK": 1}
    assert limit.leases == engine.leases.count == 0


async def test_who_awaits_an_answer_gets_it_or_its_error(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """A coroutine without callbacks can await it."""
    for error in (None, InferenceFailed("the run failed")):
        awaited = AwaitedReply[str]()
        ask(plane, reply=awaited)
        engine.answer(error)
        if error is None:
            assert await awaited.answer == ANSWER
        else:
            with pytest.raises(InferenceFailed, match="the run failed"):
                await awaited.answer


async def test_who_awaited_an_error_keeps_nothing_of_the_request(plane: DataPlane) -> None:
    """What was sent is freed with the error, without the garbage collector: it may be large."""

    async def refused(call: Asked) -> None:
        awaited = AwaitedReply[str]()
        exchange, _ = ask(plane, call, reply=awaited)
        try:
            await awaited.answer
        finally:
            exchange.leave()
            awaited.forget()

    gc.collect()
    gc.disable()
    try:
        call = Asked(decoding=InvalidInput("no number"))
        sent = weakref.ref(call)
        try:
            await refused(call)
        except InvalidInput as error:
            call.decoding = None  # the test's own hold on the error
            forget_locals(error)
        del call
        assert sent() is None
    finally:
        gc.enable()


async def test_an_answer_that_comes_once_nobody_waits_is_nothing() -> None:
    """A caller may leave in the moment of the answer."""
    awaited = AwaitedReply[str]()
    awaited.part(ANSWER)
    awaited.end(None)
    assert await awaited.answer == ANSWER
    awaited.forget()
    awaited.end(InvalidInput("late"))


async def test_what_takes_long_goes_to_a_thread(
    plane: DataPlane, engine: ControlledEngine, limit: ConcurrencyLimit
) -> None:
    """Reading counts among the requests in progress; all ends as on the loop."""
    _, reply = ask(plane, Asked(work=LARGE_BYTES + 1, large=True), long=True)
    assert limit.reading == 1
    assert not engine.requests
    await until(lambda: engine.requests)
    assert limit.reading == 0
    engine.answer()
    assert not reply.got
    await until(lambda: reply.ends)
    assert (reply.got, reply.codes) == ([ANSWER], ["OK"])


@pytest.mark.parametrize("long", [False, True])
async def test_what_cannot_be_read_is_counted_without_a_version(
    plane: DataPlane, metrics: Metrics, long: bool
) -> None:
    """It is counted under the model that its path names."""
    _, reply = ask(plane, reading=InvalidInput("no JSON"), long=long)
    await until(lambda: reply.ends)
    assert (reply.got, reply.codes) == ([], ["InvalidInput"])
    assert outcomes(metrics, "") == {"InvalidInput": 1}


async def test_the_error_says_whose_it_is(plane: DataPlane, engine: ControlledEngine) -> None:
    """Its log line gets them; the text of a bug is not shown to callers."""
    _, reply = ask(plane, Asked(encoding=ZeroDivisionError("secret")))
    engine.answer()
    (error,) = reply.ends
    assert isinstance(error, InferenceFailed)
    assert error.log_context == {"model": "m", "version": "1"}
    assert "secret" not in str(error)


@pytest.mark.parametrize("large", [False, True])
async def test_an_answer_that_cannot_be_sent_is_an_error(
    plane: DataPlane, engine: ControlledEngine, large: bool
) -> None:
    """This holds for an answer that a thread has written as well."""

    class Deaf(Noted):
        def part(self, answer: str) -> None:
            raise MemoryError

    _, reply = ask(plane, Asked(large=large), reply=Deaf())
    engine.answer()
    await until(lambda: reply.ends)
    assert reply.codes == ["InferenceFailed"]


async def test_who_has_left_is_told_nothing(
    plane: DataPlane, engine: ControlledEngine, metrics: Metrics, limit: ConcurrencyLimit
) -> None:
    """The engine does not run for it; leaving twice is leaving once."""
    exchange, reply = ask(plane)
    exchange.leave()
    exchange.leave(DeadlineExceeded(1))
    assert engine.requests[-1].cancelled
    assert not reply.ends
    assert outcomes(metrics) == {"Cancelled": 1}
    assert limit.leases == 0


async def test_an_answer_without_room_is_refused(
    plane: DataPlane, engine: ControlledEngine, metrics: Metrics, limit: ConcurrencyLimit
) -> None:
    """It is refused before it is written if others wait to be read; it holds nothing then."""
    with plane.memory.hold() as others:
        others.set(plane.memory.maximum)
        exchange, reply = ask(plane, Asked(large=True))
        engine.answer()
        assert (reply.got, reply.codes) == ([], ["Overloaded"])
        assert exchange.hold.size == 0
    assert outcomes(metrics) == {"Overloaded": 1}
    assert limit.leases == 0


async def test_leaving_says_why(plane: DataPlane, metrics: Metrics) -> None:
    """A wire that watches its callers' deadlines knows."""
    exchange, _ = ask(plane)
    exchange.leave(DeadlineExceeded(1))
    assert outcomes(metrics) == {"DeadlineExceeded": 1}


async def test_leaving_after_the_end_changes_nothing(
    plane: DataPlane, engine: ControlledEngine, metrics: Metrics
) -> None:
    """A caller that awaits an answer leaves in any case."""
    exchange, _ = ask(plane)
    engine.answer()
    exchange.leave()
    assert outcomes(metrics) == {"OK": 1}


@pytest.mark.parametrize(
    ("own", "wire", "wanted"), [(1.0, 3.0, 1.0), (3.0, 1.0, 1.0), (None, 1.0, 1.0), (1.0, None, 1)]
)
async def test_the_earliest_time_limit_counts(
    plane: DataPlane, engine: ControlledEngine, own: float | None, wire: float | None, wanted: float
) -> None:
    """The limits are that of the body and the deadline of the wire."""
    deadline = None if wire is None else monotonic() + wire
    ask(plane, Asked(timeout=own), context=RequestContext(deadline=deadline))
    timeout = engine.requests[-1].timeout
    assert timeout is not None
    assert timeout <= wanted
    assert wanted - timeout < 0.9 * wanted


async def test_tensors_are_counted_where_the_body_was(
    plane: DataPlane, engine: ControlledEngine
) -> None:
    """If they took long, the outputs are counted instead."""
    exchange, _ = ask(plane, Asked(work=LARGE_BYTES + 1))
    await until(lambda: engine.requests)
    assert exchange.hold.size == ROW["x"].nbytes
    engine.answer()
    assert exchange.hold.size == sum(array.nbytes for array in engine.model(ROW))
    small, _ = ask(plane)
    assert small.hold.size == 0


class Watching:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def began(self, context: RequestContext) -> None:
        self.told.append(("began", context.request_id))

    def queued(self, context: RequestContext, served: ServedVersion) -> None:
        self.told.append(("queued", context.request_id, served.version))

    def ran(self, context: RequestContext, lease: RanLease) -> None:
        self.told.append(("ran", context.request_id, lease.served.version))

    def ended(
        self,
        served: ServedVersion,
        variant: str,
        error: BaseException | None,
        seconds: float,
        times: int = 1,
        context: RequestContext | None = None,
    ) -> None:
        assert context is not None
        self.told.append(("ended", context.request_id, served.version, error, times))

    def refused(self, model: str, error: CohortError, times: int = 1) -> None:
        self.told.append(("refused", model, error.code, times))


async def test_an_observer_is_told_of_each_step() -> None:
    """Each step is reported once, in order, with the known facts about the request."""
    engine, watching = ControlledEngine([X], OUTPUTS), Watching()
    registry = make_registry({"m": [make_entry(1, engine)]})
    plane = make_data_plane(registry, make_metrics(), observer=watching)
    ask(plane.limited_to(frozenset({"m"})), context=RequestContext(request_id="r"))
    engine.answer()
    assert watching.told == [
        ("began", "r"),
        ("queued", "r", "1"),
        ("ran", "r", "1"),
        ("ended", "r", "1", None, 1),
    ]
    ask(plane, reading=InvalidInput("no JSON"))
    assert watching.told[-1] == ("refused", "m", "InvalidInput", 1)


BROKEN = st.sampled_from([None, None, InvalidInput("no"), ZeroDivisionError("a bug")])


@given(
    st.builds(
        Asked,
        model=st.sampled_from(["m", "m", "m", "n"]),
        decoding=BROKEN,
        encoding=BROKEN,
        work=st.sampled_from([0, LARGE_BYTES + 1]),
        large=st.booleans(),
    ),
    BROKEN,
    st.booleans(),
    st.sampled_from([None, None, InferenceFailed("the run failed")]),
    st.none() | st.integers(0, 12),
)
def test_whatever_happens_a_request_ends_once(
    call: Asked, reading: Broken, long: bool, failure: CohortError | None, leaves: int | None
) -> None:
    """A request is answered, refused or cancelled once, and then holds no resources."""

    async def play() -> None:
        engine, metrics, limit = ControlledEngine([X], OUTPUTS), make_metrics(), ConcurrencyLimit(3)
        registry = make_registry({"m": [make_entry(1, engine)]})
        plane = make_data_plane(registry, metrics, limit=limit)
        exchange, reply = ask(plane, call, reading=reading, long=long)

        def ended() -> bool:
            if engine.waiting:
                engine.answer(failure)
            return bool(reply.ends)

        if leaves is None:
            await until(ended)
        else:
            for _ in range(leaves):
                ended()
                await iterations(1)
        told = len(reply.ends)
        exchange.leave()
        await until(lambda: not limit.reading)
        await iterations(1)
        assert len(reply.ends) == told <= 1, "who had left was told"
        (code,) = reply.codes or ["Cancelled"]
        assert reply.got == ([ANSWER] if code == "OK" else [])
        if exchange.lease is not None:
            assert outcomes(metrics) == {code: 1}
            assert not outcomes(metrics, "")
        assert limit.leases == limit.reading == engine.leases.count == 0

    asyncio.run(play())
