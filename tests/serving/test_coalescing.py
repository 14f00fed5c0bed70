"""Coalescing: groups, their failures, and what is counted."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import orjson
import pytest

from cohort.batching import Outputs, Reply, RunResult
from cohort.codec import Asked
from cohort.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
)
from cohort.http.calls import RowForm
from cohort.http.predict.calls import PredictCall
from cohort.http.predict.rows import read_predict_rows
from cohort.metrics import VersionMetrics
from cohort.registry import BatchEngine
from cohort.registry.engine import LeaseCount
from cohort.serving import RequestContext
from cohort.serving.coalescing import COALESCED_RUN_SECONDS, Coalescer
from cohort.serving.groups import Group, Intake, QueuedRun, SmallRequest
from cohort.serving.lease import GroupLease
from cohort.serving.limit import ConcurrencyLimit
from cohort.serving.observing import RequestCounts
from cohort.serving.served import ServedVersion
from cohort.serving.targets import Chosen, Target
from cohort.tensors import Arrays, TensorSpec
from tests.engines import ControlledRequest
from tests.fakes import make_metrics

BAD = -1.0


@pytest.fixture(autouse=True)
def clock() -> Iterator[mock.Mock]:
    """A clock that is stopped unless a test moves it: groups may run at once."""
    with mock.patch("cohort.serving.coalescing.monotonic", return_value=100.0) as clock:
        yield clock


def body(value: float, *, model: str = "m", name: str | None = "x") -> bytes:
    if name is None:
        return orjson.dumps({"model": model, "input": [[value, 1.0]]})
    return orjson.dumps({"model": model, "inputs": {name: [[value, 1.0]]}})


@dataclass
class Request:
    """A request with a body; `became` records its calls, one after the other."""

    body: bytes
    model: str | None = None
    response_complete: bool = False
    run: QueuedRun | None = None
    became: list[Any] = field(default_factory=list)
    writing: Callable[[], None] = lambda: None  # called as its response is written

    def proceed(self, body: bytes) -> None:
        assert body == self.body
        self.became.append("single")

    def proceed_parsed(self, document: object, body: bytes) -> None:
        assert (document, body) == (orjson.loads(body), self.body)
        self.became.append("single")

    def refuse(self, error: CohortError) -> None:
        self._end(error)

    def fail(self, error: Exception) -> None:
        self._end(error)

    context = RequestContext()

    def succeed(self, body: bytes, headers: object, group: Group) -> None:
        self.writing()
        self._end(orjson.loads(body)["outputs"]["y"])

    def _end(self, became: object) -> None:
        assert not self.response_complete
        self.response_complete = True
        self.became.append(became)


FORM = RowForm(read_predict_rows, PredictCall.from_document)


def double(inputs: Arrays) -> Outputs:
    """Return a model that takes no row with a BAD number, and divides by it."""
    x = np.asarray(inputs["x"], "f4")
    if (x == BAD).any():
        raise InvalidInput("a bad row")
    return [x * 2]


class FakeEngine:
    """Runs at once, or when the test calls it; `run` is the model."""

    outputs = (TensorSpec("y", "FP32", ("N", 2)),)
    inputs = (TensorSpec("x", "FP32", ("N", 2)),)
    optional_inputs = ()
    labels = ()
    timeout = 30.0

    def __init__(self, run: Callable[[Arrays], Outputs] = double, *, inline_rows: int = 8) -> None:
        self.run = run
        self.inline_rows = inline_rows
        self.room = 1 << 20
        self.leases = LeaseCount()
        self.busy = False  # True if others wait already
        self.queued: list[Callable[[], None]] = []
        self.tickets: list[ControlledRequest] = []
        self.ran: list[int] = []  # rows
        self.requests: list[int] = []
        self.refusal: Exception | None = None
        self.most_queued = 1 << 20  # requests of one group
        self.full = Overloaded("the queue is full")

    def run_now(self, inputs: Arrays, arrived: float, rows: int, requests: int) -> RunResult | None:
        if self.refusal is not None:
            raise self.refusal
        if self.busy:
            return None
        assert len(inputs["x"]) == rows
        self.requests.append(requests)
        self.ran.append(rows)
        try:
            return self.run(inputs), None
        except CohortError as error:
            return None, error

    def room_for(self, priority: int) -> int:
        return self.room

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float,
        timeout: float,
        requests: int,
        priority: int,
    ) -> ControlledRequest:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(requests)
        if requests > self.most_queued:
            raise self.full
        ticket = ControlledRequest(inputs, reply, deadline, timeout, requests, priority)
        self.tickets.append(ticket)
        self.queued.append(lambda: self._answer(inputs, reply))
        return ticket

    def _answer(self, inputs: Arrays, reply: Reply) -> None:
        self.ran.append(len(inputs["x"]))
        try:
            outputs = self.run(inputs)
        except CohortError as error:
            reply(None, error)
        else:
            reply(outputs, None)


@dataclass
class FakeMetrics:
    """Counts requests by their code."""

    codes: Counter[str] = field(default_factory=Counter)

    def request(self, variant: str, code: str, seconds: float, count: int = 1) -> None:
        self.codes[code] += count


class Plane:
    """A coalescer over one version of the model `m`, with its end of the iteration in the test."""

    def __init__(self, engine: FakeEngine, *, most: int = 100) -> None:
        self.engine = engine
        self.counts = FakeMetrics()
        self.limit = ConcurrencyLimit(most)
        self.served = ServedVersion(
            "m", "1", cast("BatchEngine", engine), cast("VersionMetrics", self.counts)
        )
        self.models: dict[Asked, ServedVersion] = {"m": self.served}
        self.collect: list[Callable[[], None]] = []
        self.refused: list[tuple[str, str, int]] = []
        self.coalescer = Coalescer(
            target=self._target,
            admit=self.limit.check,
            lease=self._lease,
            room=lambda served, priority: min(self.limit.room_for(priority), self.engine.room),
            refused=lambda *one: self.refused.append((one[0], one[1].code, one[2])),
            observer=RequestCounts(make_metrics()),
            gather=self.collect.append,
        )

    def _target(self, asked: Asked) -> Target | None:
        served = self.models.get(asked)
        if served is None or not served.coalescible or self.engine.inline_rows < 2:
            return None
        return Target(Chosen(served, "", self.engine.inline_rows, None))

    def _lease(
        self, served: ServedVersion, variant: str, started: float, count: int, priority: int
    ) -> GroupLease:
        self.limit.check(count, priority)
        return GroupLease(served, self.limit, started, count, priority, variant)

    def answer(self, *requests: Request) -> list[object]:
        """Send requests in one iteration; gives what became of each, as the last word."""
        for one in requests:
            self.coalescer.add(cast("SmallRequest", one), Intake(FORM, one.model), one.body)
        (collect,) = self.collect
        self.collect.clear()
        collect()
        return [one.became[-1] if one.became else None for one in requests]

    def assert_nothing_held(self) -> None:
        assert self.limit.leases == 0
        assert self.engine.leases.count == 0


def requests(*values: float) -> list[Request]:
    return [Request(body(value)) for value in values]


@pytest.mark.parametrize("busy", [False, True], ids=["at once", "queued"])
def test_a_group_is_one_run_and_each_request_gets_its_row(busy: bool) -> None:
    """It runs at once, or is queued behind other requests."""
    plane = Plane(FakeEngine())
    plane.engine.busy = busy
    group = requests(1, 2, 3)
    became = plane.answer(*group)
    if busy:
        assert became == [None] * 3
        assert plane.limit.leases == plane.engine.leases.count == 3
        plane.engine.queued[0]()
    assert [one.became for one in group] == [[[[2, 2]]], [[[4, 2]]], [[[6, 2]]]]
    assert plane.engine.ran == [3]
    assert plane.counts.codes == {"OK": 3}
    plane.assert_nothing_held()


@pytest.mark.parametrize("busy", [False, True], ids=["at once", "queued"])
@pytest.mark.parametrize(
    "error", [InvalidInput("a bad row"), InferenceFailed("out of bounds"), NotReady("closed")]
)
def test_a_run_that_one_row_may_have_failed_is_retried_one_by_one(
    busy: bool, error: CohortError
) -> None:
    """Only the single requests are counted, and only the one at fault fails."""

    def run(inputs: Arrays) -> Outputs:
        raise error

    plane = Plane(FakeEngine(run))
    plane.engine.busy = busy
    group = requests(1, BAD, 3)
    plane.answer(*group)
    for queued in plane.engine.queued:
        queued()
    assert [one.became for one in group] == [["single"]] * 3
    assert plane.engine.ran == [3]
    assert not plane.counts.codes
    plane.assert_nothing_held()


@pytest.mark.parametrize(
    "error", [DeadlineExceeded(1.0), InferenceFailed("out of memory", blames_input=False)]
)
def test_a_run_that_fails_for_all_is_not_retried(error: CohortError) -> None:
    """After a timeout or a failure of the device all get the error and are counted by it."""

    def run(inputs: Arrays) -> Outputs:
        raise error

    plane = Plane(FakeEngine(run))
    assert plane.answer(*requests(1, 2)) == [error] * 2
    assert plane.counts.codes == {error.code: 2}
    assert error.log_context == {"model": "m", "version": "1"}
    plane.assert_nothing_held()


@pytest.mark.parametrize("blames_input", [True, False])
def test_a_failed_run_is_freed_without_the_garbage_collector(blames_input: bool) -> None:
    """Its error's traceback refers to its rows."""
    rows: list[weakref.ref[Any]] = []

    def run(inputs: Arrays) -> Outputs:
        rows.append(weakref.ref(inputs["x"]))
        raise InferenceFailed("the run failed", blames_input=blames_input)

    plane = Plane(FakeEngine(run))
    gc.disable()
    try:
        plane.answer(*requests(1, 2))
        assert [row() for row in rows] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "outputs",
    [
        [np.array([[1, 2], [np.nan, 4]], "f4")],
        [np.array([[1, 2], [np.inf, 4]], "f4")],
        [np.ones((1, 2), "f4")],
        [np.ones((3, 2), "f4")],
        [np.float32(1)],
    ],
    ids=["NaN", "infinity", "too few rows", "too many", "no rows"],
)
def test_outputs_that_cannot_be_split_by_row_are_retried_one_by_one(outputs: Outputs) -> None:
    """Each single request gets its own error or outputs, and nothing is counted twice."""
    plane = Plane(FakeEngine(lambda inputs: outputs))
    assert plane.answer(*requests(1, 2)) == ["single"] * 2
    assert plane.served.coalescible
    assert not plane.counts.codes
    plane.assert_nothing_held()


def test_a_model_with_large_outputs_is_not_coalesced_again() -> None:
    """Large outputs are written on the codec thread, one by one."""
    plane = Plane(FakeEngine(lambda inputs: [np.ones((2, 500_000), "f4")]))
    assert plane.answer(*requests(1, 2)) == ["single"] * 2
    assert plane.answer(*requests(1, 2)) == ["single"] * 2
    assert plane.engine.ran == [2]
    plane.assert_nothing_held()


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_group_over_the_concurrency_limit_runs_as_far_as_there_is_room(most: int) -> None:
    """The others are refused at once, together, and counted by that."""
    plane = Plane(FakeEngine(), most=most)
    became = plane.answer(*requests(1, 2, 3))
    assert became[:most] == [[[2, 2]], [[4, 2]]][:most]
    assert [type(one) for one in became[most:]] == [Overloaded] * (3 - most)
    assert plane.refused == [("m", "Overloaded", 3 - most)]
    assert plane.engine.ran == ([most] if most else [])
    plane.assert_nothing_held()


@pytest.mark.parametrize("room", [0, 2, 99])
def test_a_group_over_the_engines_queue_is_queued_as_far_as_there_is_room(room: int) -> None:
    """Whatever room the engine reports, a refused group is not tried again unchanged."""
    plane = Plane(FakeEngine())
    plane.engine.busy, plane.engine.room, plane.engine.most_queued = True, room, 2
    fits = min(room, 2)
    assert plane.answer(*requests(1, 2, 3)) == [None] * fits + [plane.engine.full] * (3 - fits)
    assert plane.refused == [("m", "Overloaded", 3 - fits)]
    for queued in plane.engine.queued:
        queued()
    plane.assert_nothing_held()


def test_a_caller_that_left_is_not_refused_with_its_group() -> None:
    """It is not counted either: there is no client to answer."""
    plane = Plane(FakeEngine(), most=0)
    group = requests(1, 2)
    group[0].response_complete = True
    plane.answer(*group)
    assert group[0].became == []
    assert plane.refused == [("m", "Overloaded", 1)]


@pytest.mark.parametrize("busy", [False, True], ids=["at once", "queued"])
def test_a_group_whose_version_is_unloaded_becomes_single_requests(busy: bool) -> None:
    """Another version may serve by then."""
    plane = Plane(FakeEngine())
    plane.engine.refusal, plane.engine.busy = NotReady("closed"), busy
    assert plane.answer(*requests(1, 2, 3)) == ["single"] * 3
    assert not plane.counts.codes
    plane.assert_nothing_held()


def test_a_group_has_at_most_the_rows_that_may_run_on_the_event_loop() -> None:
    """Further rows are the next group; each request is answered once."""
    plane = Plane(FakeEngine(inline_rows=2))
    group = requests(1, 2, 3, 4, 5)
    assert plane.answer(*group) == [[[2 * value, 2]] for value in (1, 2, 3, 4, 5)]
    assert plane.engine.ran == [2, 2, 1]
    assert plane.counts.codes == {"OK": 5}
    plane.assert_nothing_held()


def test_groups_run_on_the_event_loop_for_a_limited_time(clock: mock.Mock) -> None:
    """Further groups are queued, because sockets wait to be read."""

    def run(inputs: Arrays) -> Outputs:
        clock.return_value += COALESCED_RUN_SECONDS
        return double(inputs)

    plane = Plane(FakeEngine(run, inline_rows=2))
    became = plane.answer(*requests(1, 2, 3, 4))
    assert became == [[[2, 2]], [[4, 2]], None, None]
    plane.engine.queued[0]()
    plane.assert_nothing_held()


def test_a_caller_that_left_gets_no_response_and_is_counted_as_cancelled() -> None:
    """The others are answered with their own rows."""
    plane = Plane(FakeEngine())
    plane.engine.busy = True
    group = requests(1, 2, 3)
    plane.answer(*group)
    group[1].response_complete = True
    plane.engine.queued[0]()
    assert [one.became for one in group] == [[[[2, 2]]], [], [[[6, 2]]]]
    assert plane.counts.codes == {"OK": 2, Cancelled.__name__: 1}
    plane.assert_nothing_held()


def test_a_caller_that_left_in_the_iteration_that_brought_its_request_has_it_not_run() -> None:
    """Its body is not even read."""
    plane = Plane(FakeEngine())
    group = requests(1, 2)
    group[0].response_complete = True
    group[0].body = b"no document"
    plane.answer(*group)
    assert [one.became for one in group] == [[], [[[4, 2]]]]
    assert (plane.engine.ran, plane.counts.codes) == ([1], {"OK": 1})


@pytest.mark.parametrize("running", [False, True])
def test_a_run_that_all_callers_left_is_cancelled_and_counted_until_it_is_over(
    running: bool,
) -> None:
    """One that waits is never begun; a running one holds its limits until its end."""
    plane = Plane(FakeEngine())
    plane.engine.busy = True
    group = requests(1, 2)
    plane.answer(*group)
    (ticket,) = plane.engine.tickets
    ticket.running = running
    over: list[int] = []
    for number, one in enumerate(group):
        assert not ticket.cancelled
        assert not over
        assert one.run is not None
        one.run.leave(partial(over.append, number))
    assert ticket.cancelled
    if running:
        assert (over, plane.limit.leases) == ([], 2)
        ticket.over()
    assert over == [0, 1]
    plane.assert_nothing_held()


def test_a_caller_that_left_gets_no_error_and_is_not_retried() -> None:
    """The others get the error or become single requests."""
    for error, became in ((DeadlineExceeded(1.0), None), (InvalidInput("bad"), "single")):

        def run(inputs: Arrays, error: CohortError = error) -> Outputs:
            raise error

        plane = Plane(FakeEngine(run))
        plane.engine.busy = True
        group = requests(1, 2)
        plane.answer(*group)
        group[0].response_complete = True
        plane.engine.queued[0]()
        assert [one.became for one in group] == [[], [became or error]]
        plane.assert_nothing_held()


def test_a_bug_while_one_is_answered_fails_the_requests_after_it() -> None:
    """Every request gets a response."""
    plane = Plane(FakeEngine())
    group = requests(1, 2, 3)

    def broken() -> None:
        raise ZeroDivisionError

    group[1].writing = broken
    first, *others = plane.answer(*group)
    assert first == [[2, 2]]
    assert [type(one) for one in others] == [ZeroDivisionError] * 2
    plane.assert_nothing_held()


@pytest.mark.parametrize(
    "broken",
    [
        "cohort.http.predict.rows.flat_rows",
        "cohort.serving.coalescing.pack_rows",
        "cohort.codec.ResponseTemplate.write",
    ],
)
def test_a_bug_fails_the_whole_group_and_releases_its_lease(broken: str) -> None:
    """The bug may be before or after the run; the next group is answered."""
    plane = Plane(FakeEngine())
    with mock.patch(broken, side_effect=ZeroDivisionError):
        became = plane.answer(*requests(1, 2))
    assert [type(one) for one in became] == [ZeroDivisionError] * 2
    plane.assert_nothing_held()
    assert plane.answer(*requests(1)) == [[[2, 2]]]


def test_a_bug_in_the_engine_fails_the_whole_group_and_releases_its_lease() -> None:
    """The requests are not retried one by one, which would meet the same bug."""
    plane = Plane(FakeEngine())
    plane.engine.refusal = ZeroDivisionError()
    assert plane.answer(*requests(1, 2)) == [plane.engine.refusal] * 2
    plane.assert_nothing_held()


@pytest.mark.parametrize("odd", ["true", '"4"', "null", "[4]", "1e300"])
def test_a_group_with_an_invalid_row_becomes_single_requests(odd: str) -> None:
    """Only the one at fault is refused."""
    plane = Plane(FakeEngine())
    bad = Request(b'{"model": "m", "inputs": {"x": [[1, %b]]}}' % odd.encode())
    assert plane.answer(*requests(1), bad, *requests(3)) == ["single"] * 3
    assert plane.engine.ran == []
    plane.assert_nothing_held()


def test_groups_are_by_model_input_and_width() -> None:
    """The order of the requests does not matter."""
    plane = Plane(FakeEngine())
    form = Request(body(7, name=None))
    group = [
        Request(body(1)),
        Request(b'{"model": "m", "inputs": {"x": [[1]]}}'),
        Request(body(2)),
        Request(body(3, model="other")),
        Request(body(4, name="y")),
        Request(body(5), model="m"),
        Request(body(6), model="other"),
        Request(body(6, model="other"), model="m"),
        Request(b"[1]"),
        Request(b'{"inputs": {"x": [[8, 1]]}}', model="m"),
    ]
    became = plane.answer(*group)
    assert became == [
        [[2, 2]], "single", [[4, 2]], "single", "single", [[10, 2]], "single", "single", "single",
        [[16, 2]],
    ]  # fmt: skip
    assert plane.engine.ran == [4]
    with mock.patch.object(form, "succeed", lambda body, *_: form.became.append(body)):
        plane.answer(form)
    assert orjson.loads(form.became[0])["prediction"] == [[14, 2]]


def test_a_body_that_is_not_json_is_refused_before_grouping() -> None:
    """It has no version to be counted with; the others are answered."""
    plane = Plane(FakeEngine())
    refused, answered = plane.answer(Request(b"{"), *requests(1))
    assert isinstance(refused, InvalidInput)
    assert answered == [[2, 2]]


def test_bodies_for_a_model_that_is_not_coalesced_are_not_parsed() -> None:
    """The request becomes a single one with its body as it came."""
    plane = Plane(FakeEngine())
    with mock.patch("cohort.http.predict.rows.orjson.loads", side_effect=AssertionError):
        assert plane.answer(Request(b"{", model="unknown")) == ["single"]


@pytest.mark.parametrize("limit", ["not coalescible", "too slow", "gone"])
def test_models_that_are_not_coalesced(limit: str) -> None:
    """Outputs that cannot be split, slow runs, or a missing version prevent it."""
    plane = Plane(FakeEngine(inline_rows=1 if limit == "too slow" else 8))
    plane.served.coalescible = limit != "not coalescible"
    if limit == "gone":
        plane.models.clear()
    assert plane.answer(*requests(1, 2)) == ["single"] * 2
    assert plane.engine.ran == []
    plane.assert_nothing_held()
