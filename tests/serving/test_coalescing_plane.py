"""Coalescing over a real plane: limits, rollouts and versions as requests see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cohort.auth import Caller
from cohort.batching import Outputs
from cohort.connections.memory import MemoryBudget
from cohort.errors import CohortError, InferenceFailed, NotReady
from cohort.http.calls import RowForm
from cohort.http.predict.calls import PredictCall
from cohort.http.predict.rows import read_predict_rows
from cohort.metrics import Metrics
from cohort.observability.tracing import RequestSpan
from cohort.rollouts import parse_rollouts
from cohort.serving import ConcurrencyLimit, DataPlane, RequestContext
from cohort.serving.coalescing import Coalescer
from cohort.serving.groups import Group, Intake, QueuedRun
from cohort.serving.served import ServedVersion
from cohort.serving.targets import RolloutTarget
from cohort.tensors import Arrays, TensorSpec
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import make_rollouts

FORM = RowForm(read_predict_rows, PredictCall.from_document)


class Request:
    """A small request that notes what becomes of it."""

    def __init__(self, body: object, model: str | None = None) -> None:
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.model = model
        self.key: str | None = None
        self.span: RequestSpan | None = None
        self.response_complete = False
        self.run: QueuedRun | None = None
        self.became: list[tuple[str, Any]] = []

    def _note(self, what: str, value: object, *, ends: bool = True) -> None:
        assert not self.response_complete, "it needed no response any more"
        self.response_complete = ends
        self.became.append((what, value))

    def proceed(self, body: bytes) -> None:
        self._note("proceeded unparsed", body)

    def proceed_parsed(self, document: object, body: bytes) -> None:
        assert document == json.loads(body)
        self._note("proceeded", document)

    def refuse(self, error: CohortError) -> None:
        self._note("refused", error.code)

    @property
    def context(self) -> RequestContext:
        return RequestContext(id(self), {} if self.key is None else {"x-user": self.key})

    def succeed(self, body: bytes, headers: object, group: Group) -> None:
        self._note("succeeded", json.loads(body))

    def fail(self, error: Exception) -> None:
        self._note("failed", error)

    @property
    def outcome(self) -> str:
        (one,) = self.became
        return one[0]

    @property
    def output(self) -> object:
        ((what, document),) = self.became
        assert what == "succeeded", what
        return document["outputs"]["y"]


X = TensorSpec("x", "FP32", (None, 2))
Y = TensorSpec("y", "FP32", (None, 2))


class Iteration:
    """One model behind a data plane, and event-loop iterations that end when the test ends them."""

    def __init__(self, engine: ControlledEngine, *, max_concurrency: int = 100) -> None:
        self.engine = engine
        self.metrics: Metrics = make_metrics()
        registry = make_registry({"m": [make_entry(1, engine)]})
        self.rollouts = make_rollouts(registry)
        self.limit = ConcurrencyLimit(max_concurrency)
        self._ends: list[Callable[[], None]] = []
        self.plane = DataPlane(
            registry,
            self.metrics,
            self.rollouts,
            default_model=None,
            limit=self.limit,
            memory=MemoryBudget(2**30),
            gather=self._ends.append,
        )
        self.plane.pick("m").close()  # the first request of a model is a single one
        self.counted = dict(self.metrics.version("m", "1").outcomes)

    @property
    def coalescer(self) -> Coalescer:
        return self.plane.coalescer

    def read(self, *requests: Request) -> Sequence[Request]:
        for request in requests:
            self.coalescer.add(request, Intake(FORM, request.model), request.body)
        return requests

    def end(self) -> None:
        ends, self._ends[:] = list(self._ends), []
        for end in ends:
            end()

    def take(self, *requests: Request) -> list[str]:
        """Read requests and end the iteration: what became of each."""
        self.read(*requests)
        self.end()
        return [request.outcome for request in requests]

    def counts(self) -> dict[str, int]:
        """Answers by code since the start."""
        answered = self.metrics.version("m", "1").outcomes
        return {
            code: count - self.counted.get((variant, code), 0)
            for (variant, code), count in answered.items()
            if count != self.counted.get((variant, code), 0)
        }


def row(*values: float, **rest: object) -> Request:
    return Request({"model": "m", "inputs": {"x": [list(values)]}, **rest})


@pytest.fixture(autouse=True)
def _plenty_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is too slow to run its groups within the iteration."""
    monkeypatch.setattr("cohort.serving.coalescing.COALESCED_RUN_SECONDS", 60.0)


@pytest.fixture
def iteration() -> Iteration:
    return Iteration(ControlledEngine([X], [Y], inline_rows=8))


def test_requests_of_one_iteration_are_one_run(
    iteration: Iteration,
) -> None:
    """The model gets one array, and each request the outputs of its row."""
    requests = [row(number, 1) for number in range(5)]
    assert iteration.take(*requests) == ["succeeded"] * 5
    (inputs,) = iteration.engine.inline_runs
    assert inputs["x"].shape == (5, 2)
    assert [request.output for request in requests] == [[[2.0 * n, 2.0]] for n in range(5)]
    assert iteration.counts() == {"OK": 5}
    assert iteration.limit.leases == iteration.engine.leases.count == 0


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(row(1, 2, outputs=["z"]), id="an output that is not there"),
        pytest.param(row(1, 2, outputs=["y", "y"]), id="an output twice"),
        pytest.param(row(1, 2, timeout_ms=5), id="a time limit"),
        pytest.param(Request({"model": "m", "inputs": {"x": [[1, 2]] * 9}}), id="too many rows"),
        pytest.param(
            Request({"inputs": {"x": [[1, 2]]}, "version": "1"}), id="a version nobody had yet"
        ),
        pytest.param(Request([1]), id="no object"),
        pytest.param(row(1, 2, 3), id="another width"),
        pytest.param(Request({"model": "m", "inputs": {"z": [[1, 2]]}}), id="another input"),
        pytest.param(Request({"model": "other", "inputs": {"x": [[1, 2]]}}), id="another model"),
        pytest.param(
            Request({"model": "other", "inputs": {"x": [[1, 2]]}}, model="m"), id="two models"
        ),
        pytest.param(row(1, True), id="a boolean"),
    ],
)
def test_a_single_request_continues_with_the_parsed_document(
    iteration: Iteration, request_: Request
) -> None:
    """No body is parsed twice, and the other requests of the iteration are coalesced."""
    request_.became.clear()
    request_.response_complete = False
    others = [row(1, 2), row(3, 4)]
    assert iteration.take(others[0], request_, others[1])[1] == "proceeded"
    if request_.body != row(1, True).body:  # which fails the group it would be packed with
        assert [one.outcome for one in others] == ["succeeded"] * 2


def test_rows_ids_and_outputs_differ_within_a_group(iteration: Iteration) -> None:
    """Requests with an id have a separate run, and so do those that name outputs."""
    two = Request({"model": "m", "inputs": {"x": [[1, 2], [3, 4]]}})
    one, named = row(5, 6), row(7, 8, id="a")
    other, chosen = row(9, 10, id="b"), row(11, 12, outputs=["y"])
    assert iteration.take(two, named, one, other, chosen) == ["succeeded"] * 5
    assert [request.output for request in (two, one, named, other, chosen)] == [
        [[2, 4], [6, 8]], [[10, 12]], [[14, 16]], [[18, 20]], [[22, 24]],
    ]  # fmt: skip
    assert [request.became[0][1].get("id") for request in (two, named, other)] == [None, "a", "b"]
    assert [len(inputs["x"]) for inputs in iteration.engine.inline_runs] == [3, 2, 1]
    assert iteration.counts() == {"OK": 5}


class Split(Iteration):
    """Two versions behind a rollout; version 2 multiplies by three."""

    def __init__(self, text: str) -> None:
        super().__init__(ControlledEngine([X], [Y], inline_rows=8))
        self.error: CohortError | None = None
        self.second = ControlledEngine([X], [Y], model=self._triple, inline_rows=8)
        registry = make_registry({"m": [make_entry(1, self.engine), make_entry(2, self.second)]})
        self.rollouts = make_rollouts(registry)
        self.plane = DataPlane(
            registry,
            self.metrics,
            self.rollouts,
            default_model=None,
            limit=self.limit,
            memory=MemoryBudget(2**30),
            gather=self._ends.append,
        )
        for version in "12":
            self.plane.pick("m", version).close()
        self.rollouts.apply(parse_rollouts(text, "rollouts.yaml"))
        self.live = self.rollouts.live["m"]

    def _triple(self, inputs: Arrays) -> Outputs:
        if self.error is not None:
            raise self.error
        return [inputs["x"] * 3]


HALVES = """
m: {variants: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}, baseline: a,
    sticky: {header: x-user}}
"""
SECOND = """
m: {variants: {a: {version: 1, weight: 0}, b: {version: 2, weight: 1}}, baseline: a}
"""


def test_requests_of_a_rollout_are_grouped_by_what_was_chosen_for_them() -> None:
    """Each gets its own variant, as it would alone, and is counted with it."""
    split = Split(HALVES)
    requests = [row(number, 1) for number in range(16)]
    for number, request in enumerate(requests):
        request.key = f"user-{number}"
    chosen = [split.live.rollout.choose(f"user-{number}") for number in range(16)]
    assert split.take(*requests) == ["succeeded"] * 16
    for number, (request, variant) in enumerate(zip(requests, chosen, strict=True)):
        document, factor = request.became[0][1], variant.version + 1
        assert (document["variant"], document["version"]) == (variant.name, str(variant.version))
        assert document["outputs"]["y"] == [[factor * number, factor]]
    names = [variant.name for variant in chosen]
    evidence = split.live.evidence.candidates["b"]
    evidence.errors.weigh(0.01)
    for version, name, counted in (
        ("1", "a", evidence.errors.baseline),
        ("2", "b", evidence.errors.variant),
    ):
        outcomes = split.metrics.version("m", version).outcomes
        assert outcomes[name, "OK"] == counted.total == names.count(name) > 0


def test_requests_that_pin_a_version_share_runs_beside_the_rollout() -> None:
    """They do not belong to it: they have no variant, and do not count as evidence."""
    split = Split(SECOND)
    pinned = [
        Request({"model": "m", "inputs": {"x": [[number, 1]]}, "version": version})
        for number, version in enumerate(["1", 1, "1", "9"])
    ]
    with split.plane.pick("m", "1"):  # as a first one did
        pass
    chosen = row(7, 1)
    assert split.take(*pinned, chosen) == [*["succeeded"] * 3, "proceeded", "succeeded"]
    for number, request in enumerate(pinned[:3]):
        document = request.became[0][1]
        assert (document["version"], document.get("variant")) == ("1", None)
        assert document["outputs"]["y"] == [[2 * number, 2]]
    assert chosen.became[0][1]["variant"] == "b"
    assert split.live.evidence.candidates["b"].answered == 1
    assert len(split.engine.inline_runs) == 1


def test_a_caller_of_a_group_counts_once_in_a_while() -> None:
    """Evidence counts callers, not their repetitions, as for single requests."""
    split = Split(SECOND)
    request = row(1, 2)
    for _ in range(3):
        request.response_complete = False
        request.became.clear()
        split.take(request)
    evidence = split.live.evidence.candidates["b"]
    evidence.errors.weigh(0.01)
    assert (evidence.answered, evidence.errors.variant.total) == (3, 1)


def test_a_failure_of_a_group_is_evidence_for_each_request() -> None:
    """The other side tries the rows of each request."""
    split = Split(SECOND)
    split.error = InferenceFailed("out of memory", blames_input=False)
    two = Request({"model": "m", "inputs": {"x": [[3, 4], [5, 6]]}})
    assert split.take(row(1, 2), two) == ["failed"] * 2
    assert split.live.evidence.candidates["b"].answered == 2
    tried = [one.inputs["x"].tolist() for one in split.engine.side_queues[0].requests]
    assert tried == [[[1, 2]], [[3, 4], [5, 6]]]


def test_a_caller_that_left_is_no_evidence_of_an_answer() -> None:
    """It is one of a caller that gave up, as alone."""
    split = Split(SECOND)
    left, stayed = row(1, 2), row(3, 4)
    split.second.submit({}, lambda *_: None)  # so that the group is queued
    split.read(left, stayed)
    split.end()
    left.response_complete = True
    split.second.requests[-1].answer([np.ones((2, 2), "f4")])
    assert (left.became, stayed.outcome) == ([], "succeeded")
    evidence = split.live.evidence.candidates["b"]
    evidence.errors.weigh(0.01)
    assert evidence.errors.variant.total == 1


def test_a_choice_that_is_not_ready_is_not_coalesced() -> None:
    """The baseline answers for a variant that is not ready; without it the request is refused."""
    split = Split(SECOND)
    served = ServedVersion("m", "1", split.engine, split.metrics.version("m", "1"))
    target = RolloutTarget(split.live, {1}, lambda number: (served, 8))
    chosen = target.choose(row(1, 2))
    assert chosen is not None
    assert (chosen.served, chosen.variant) == (served, "a")
    assert RolloutTarget(split.live, (), lambda number: (served, 8)).choose(row(1, 2)) is None


def test_a_group_without_room_is_admitted_as_far_as_there_is_room() -> None:
    """The other requests are refused and counted as rejected."""
    iteration = Iteration(ControlledEngine([X], [Y], inline_rows=8), max_concurrency=2)
    became = iteration.take(row(1, 2), row(3, 4), row(5, 6))
    assert became == ["succeeded", "succeeded", "failed"]
    refused = iteration.metrics.version("m", "")
    assert (refused.outcomes, refused.rejected) == ({("", "Overloaded"): 1}, {"Overloaded": 1})
    assert iteration.counts() == {"OK": 2}
    assert iteration.take(row(1, 2), row(3, 4)) == ["succeeded"] * 2


def test_a_closed_plane_refuses_coalesced_requests_one_by_one(iteration: Iteration) -> None:
    """Each gets NotReady."""
    iteration.plane.close()
    assert iteration.take(row(1, 2), row(3, 4)) == ["proceeded"] * 2
    with pytest.raises(NotReady, match="shutting down"):
        iteration.plane.pick("m")


def test_each_priority_has_requests_of_its_own(iteration: Iteration) -> None:
    """They share runs with none but theirs, are queued by it, and count towards one limit."""
    plane = iteration.plane
    assert plane.limited_to(None) is plane
    assert plane.limited_to(frozenset({"m"})) is plane.limited_to(frozenset({"m"})) is not plane
    caller = Caller("ada")
    caller.priority = 1
    leases = [plane.pick("m", context=RequestContext(caller=caller)), plane.pick("m")]
    assert iteration.limit.leases == iteration.engine.leases.count == 2
    for lease in leases:
        lease.submit({"x": np.ones((1, 2), "f4")}, lambda outputs, error: None)
        lease.close()
    assert [one.priority for one in iteration.engine.requests[-2:]] == [1, 0]
    group = [row(n, n) for n in range(4)]
    for number, request in enumerate(group):
        plane.coalescer.add(request, Intake(FORM, request.model, number % 2), request.body)
    iteration.end()
    assert [one.priority for one in iteration.engine.requests[-2:]] == [0, 1]
    assert [one.requests for one in iteration.engine.requests[-2:]] == [2, 2]
