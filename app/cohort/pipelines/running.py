"""One request of a pipeline on its way through the steps.

Everything happens on the event loop but what looks at many numbers. A step begins as soon as its
tensors are there; tensors are dropped once nothing needs them, and a step that nothing needs any
more is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TypeVar

from cohort.batching import Outputs, Reply
from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.pipelines.deciding import (
    Decision,
    Given,
    decide,
    missing_output,
    outputs_of,
    row_of,
    stacked,
)
from cohort.pipelines.graph import GraphStep
from cohort.pipelines.rows import Part, Rows
from cohort.pipelines.steps import Hired, Hiring, StepEnded, StepObserver, at_step
from cohort.pipelines.wiring import Wiring
from cohort.registry import Cancellable
from cohort.tensors import Arrays, check_inputs, sent_specs

A = TypeVar("A")
B = TypeVar("B")

MAX_ROWS_ALONE = 256
"""Rows of a request that a step runs one by one, because its model may mix them."""

OUTPUTS = ""
"""Stands for the outputs, among the steps that wait for tensors."""


class StepRun:
    """A step of one request that runs.

    hired: What runs it.
    tickets: Its requests: one, or one for each row.
    rows: The rows that it runs for.
    began: When it was submitted, in seconds on the monotonic clock.
    """

    __slots__ = ("answers", "began", "hired", "left", "rows", "tickets")

    def __init__(self, hired: Hired, rows: Rows, began: float) -> None:
        self.hired = hired
        self.rows = rows
        self.began = began
        self.tickets: list[Cancellable] = []
        self.answers: list[Outputs] = []
        self.left = 0


class PipelineRun:
    """One request. Implements `NotedTicket`.

    wiring: The pipeline.
    hiring: Finds what runs its steps.
    inputs: The arrays by name.
    reply: Called once, unless it is cancelled.
    deadline, timeout: That of all steps together, and the limit behind it, both in seconds.
    requests, priority: As `RequestQueue.submit` takes them.
    observe: Is told of each step.

    times: Once it has ended, the seconds that its steps waited, and the rest of its time.
    """

    remembered = False

    def __init__(
        self,
        wiring: Wiring,
        hiring: Hiring,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float,
        timeout: float | None,
        requests: int,
        priority: int,
        observe: StepObserver,
    ) -> None:
        graph = wiring.graph
        self._wiring, self._graph, self._hiring = wiring, graph, hiring
        self._reply: Reply | None = reply
        self._deadline, self._timeout = deadline, timeout
        self._requests, self._priority = requests, priority
        self._observe = observe
        self._total = -1  # the rows; -1 where they are not told apart
        if wiring.splits:
            self._total = len(inputs[graph.inputs[0]])
        self._parts: dict[str, Part] = {
            name: Part(array) for name, array in inputs.items() if name in graph.uses
        }
        self._uses = dict(graph.uses)
        self._hired: dict[str, Hired] = {}
        self._waiting = dict.fromkeys((*graph.steps, OUTPUTS))  # in order
        self._running: dict[str, StepRun] = {}
        self._over: set[str] = set()  # steps that have run, or do not run
        self._due: deque[str] = deque()
        self._began = monotonic()
        self._waited = 0.0
        self._going_on = 0  # runs that nobody waits for any more
        self._when_over: Callable[[], None] | None = None
        self.times: tuple[float, float] | None = None

    # -- for who submitted it

    def start(self) -> None:
        """Lease all models, and begin. Raises a CohortError, and then calls no reply."""
        reply, self._reply = self._reply, None
        ended: list[tuple[Outputs | None, CohortError | None]] = []
        try:
            self._hiring.hire_all(self._graph.steps, self._hired)
        except BaseException:
            self._stop()
            raise
        self._reply = lambda outputs, error: ended.append((outputs, error))
        self._due.extend([n for n, step in self._graph.steps.items() if not step.steps])
        self._due.append(OUTPUTS)
        self._proceed()
        outputs, error = ended[0] if ended else (None, None)
        if error is not None:
            raise error
        self._reply = reply
        if outputs is not None:  # nothing had to run; no reply before `submit` has returned
            asyncio.get_running_loop().call_soon(self._answer, outputs)

    def cancel(self) -> None:
        """See `Cancellable`."""
        if self._reply is not None:
            self._reply = None
            self._stop()

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        if not self._going_on:
            return False
        self._when_over = then
        return True

    # -- step by step

    def _proceed(self) -> None:
        """Begin what can, until nothing can any more."""
        while self._due and self._reply is not None:
            name = self._due.popleft()
            if name in self._waiting and self._is_ready(name):
                del self._waiting[name]
                if name:
                    self._guard(self._begin, self._graph.steps[name])
                else:
                    self._guard(self._finish)

    def _guard(self, go_on: Callable[..., None], *arguments: object) -> None:
        """Go on; whatever goes wrong, the caller gets a response."""
        try:
            go_on(*arguments)
        except CohortError as error:
            self._fail(error)
        except Exception as bug:  # noqa: BLE001
            failure = InferenceFailed("the server failed in this pipeline", blames_input=False)
            failure.__cause__ = bug
            self._fail(failure)

    def _is_ready(self, name: str) -> bool:
        """Whether all tensors are there that count, or will never be."""
        graph = self._graph
        plain = graph.steps[name].plain if name else ()
        if plain and all([tensor in self._parts for _, tensor in plain]):  # noqa: C419 - faster
            return True
        sources = graph.steps[name].sources if name else graph.outputs
        for tensors in sources.values():
            for tensor in tensors:
                part = self._parts.get(tensor)
                if part is not None and part.rows is None:
                    break  # those after it do not count
                if part is None and self._may_come(tensor):
                    return False
        condition = graph.steps[name].condition if name else None
        if condition is None:
            return True
        return not any(self._may_come(one) for one in condition.tensors)

    def _may_come(self, tensor: str) -> bool:
        return tensor not in self._parts and self._graph.places[tensor].step not in self._over

    def _given(
        self, sources: Mapping[str, tuple[str, ...]], step: GraphStep | None
    ) -> Given | None:
        """What there is; None where a tensor never comes."""
        parts = self._parts
        there: dict[str, list[Part]] = {}
        for name, tensors in sources.items():
            found = [parts[one] for one in tensors if one in parts]
            if not found:
                return None
            there[name] = found
        condition = None if step is None else step.condition
        looked_at: dict[str, Part] = {}
        for one in () if condition is None else condition.tensors:
            if one not in parts:
                return None
            looked_at[one] = parts[one]
        return Given(there, looked_at, condition, self._total)

    def _begin(self, step: GraphStep) -> None:
        if step.plain and self._total < 0:  # all there is has all rows
            parts = self._parts
            try:
                inputs = {name: parts[tensor].array for name, tensor in step.plain}
            except KeyError:
                self._skip(step)
            else:
                self._submit(step, Decision(None, inputs))
            return
        given = self._given(step.sources, step)
        if given is None:
            self._skip(step)
        elif given.is_plain:
            inputs = {name: parts[0].array for name, parts in given.sources.items()}
            self._submit(step, Decision(None, inputs))
        elif given.is_long:
            self._on_thread(partial(decide, given), partial(self._decided, step), step.name)
        else:
            self._decided(step, _at(step.name, decide, given))

    def _decided(self, step: GraphStep, decision: Decision | None) -> None:
        if decision is None:
            self._skip(step)
        else:
            self._submit(step, decision)

    def _on_thread(self, work: Callable[[], object], then: Callable[..., None], name: str) -> None:
        def done(future: asyncio.Future[object]) -> None:
            error = future.exception()
            if self._reply is None or name in self._over:
                return
            if isinstance(error, CohortError):
                self._fail(at_step(error, name) if name else error)
                return
            self._guard(lambda: then(future.result()))
            self._proceed()

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(done)

    def _submit(self, step: GraphStep, decision: Decision) -> None:
        rows, inputs = decision
        hired = self._hired.pop(step.name)
        run = self._running[step.name] = StepRun(hired, rows, monotonic())
        try:
            self._release(step.tensors)
            facts = hired.facts
            specs = facts.inputs
            if len(inputs) > len(specs):
                specs = sent_specs(specs, facts.optional, inputs)
            check_inputs(specs, inputs)
            count = self._total if rows is None else len(rows)
            if count > 1 and not facts.by_rows:
                self._submit_each(step, run, inputs, count)
            else:
                self._submit_one(step, run, inputs, 0)
        except CohortError as error:
            self._end_step(step.name, error.code)
            raise at_step(error, step.name, callers=not step.steps) from error

    def _submit_one(self, step: GraphStep, run: StepRun, inputs: Arrays, place: int) -> None:
        run.answers.append([])
        ticket = run.hired.queue.submit(
            inputs,
            partial(self._replied, step, run, place),
            deadline=self._deadline,
            timeout=self._timeout,
            requests=self._requests,
            priority=self._priority,
        )
        run.left += 1
        run.tickets.append(ticket)

    def _submit_each(self, step: GraphStep, run: StepRun, inputs: Arrays, rows: int) -> None:
        if rows > MAX_ROWS_ALONE:
            raise InvalidInput(
                f"model {step.model!r} may mix rows, so that they run one by one: at most "
                f"{MAX_ROWS_ALONE} in a request, got {rows}"
            )
        for row in range(rows):
            self._submit_one(step, run, row_of(inputs, row), row)

    def _replied(
        self,
        step: GraphStep,
        run: StepRun,
        place: int,
        outputs: Outputs | None,
        error: CohortError | None,
    ) -> None:
        if self._reply is None or self._running.get(step.name) is not run:
            return
        run.left -= 1
        if error is None and outputs is not None:
            run.answers[place] = outputs
            if run.left:
                return
        self._waited += sum(one.times[0] for one in run.tickets if one.times) / len(run.tickets)
        if outputs is None:
            error = error or InferenceFailed("no answer")
            self._end_step(step.name, error.code)
            self._fail(at_step(error, step.name, callers=not step.steps))
            return
        self._end_step(step.name, "OK")
        self._guard(self._keep, step, run)
        self._proceed()

    def _keep(self, step: GraphStep, run: StepRun) -> None:
        """Keep what somebody needs of what a step gave."""
        outputs = run.answers[0]
        if len(run.answers) > 1:
            outputs = _at(step.name, stacked, run.answers)
        run.answers = []
        rows = run.rows
        count = self._total if rows is None else len(rows)
        for spec, array in zip(run.hired.facts.outputs, outputs, strict=True):
            tensor = f"{step.name}.{spec.name}"
            if self._uses.get(tensor):
                if count >= 0 and (not array.ndim or len(array) != count):
                    raise InferenceFailed(
                        f"step {step.name!r}: output {spec.name!r} has shape "
                        f"{list(array.shape)} for {count} rows; if these are no rows, write "
                        "conditions: request"
                    )
                self._parts[tensor] = Part(array, rows)
        self._settle(step.name)

    def _skip(self, step: GraphStep) -> None:
        hired = self._hired.pop(step.name)
        hired.leases.release()
        self._observe(StepEnded(step.name, step.model, hired.version, "Skipped", 0.0, 0))
        self._release(step.tensors)
        self._settle(step.name)

    def _settle(self, name: str) -> None:
        """A step has run, or will not."""
        self._over.add(name)
        self._due.extend(self._graph.consumers[name])
        if self._graph.alternatives:
            self._trim()

    def _trim(self) -> None:
        """Let go of what comes after a tensor that has all rows, wherever that counts first."""
        graph = self._graph
        for name in list(self._waiting):
            for tensors in (graph.steps[name].sources if name else graph.outputs).values():
                if len(tensors) > 1:
                    self._trim_sources(tensors)

    def _trim_sources(self, tensors: tuple[str, ...]) -> None:
        for place, tensor in enumerate(tensors[:-1]):
            part = self._parts.get(tensor)
            if part is not None and part.rows is None:
                for later in tensors[place + 1 :]:
                    self._abandon_if_unneeded(later)
                return

    def _abandon_if_unneeded(self, tensor: str) -> None:
        """Cancel the step of a tensor, where all that looks at it has something better."""
        step = self._graph.places[tensor].step
        if not step or step in self._over:
            return
        for name in self._waiting:
            if name != step and self._still_needs(name, step):
                return
        if step in self._running:
            self._leave(step)
        else:
            self._hired.pop(step).leases.release()
            self._waiting.pop(step, None)
            self._release(self._graph.steps[step].tensors)
        self._over.add(step)
        self._due.append(OUTPUTS)
        for needed in self._graph.steps[step].steps:
            for one in self._graph.steps[step].tensors:
                if self._graph.places[one].step == needed:
                    self._abandon_if_unneeded(one)

    def _still_needs(self, name: str, step: str) -> bool:
        """Whether a step that waits, or the outputs, may need a tensor of another."""
        graph = self._graph
        for tensors in (graph.steps[name].sources if name else graph.outputs).values():
            for tensor in tensors:
                if graph.places[tensor].step == step:
                    return True
                part = self._parts.get(tensor)
                if part is not None and part.rows is None:
                    break
        condition = graph.steps[name].condition if name else None
        looks_at = () if condition is None else condition.tensors
        return any(graph.places[one].step == step for one in looks_at)

    def _release(self, tensors: Sequence[str]) -> None:
        """Drop tensors that are looked at no more."""
        uses = self._uses
        for tensor in tensors:
            uses[tensor] -= 1
            if not uses[tensor]:
                self._parts.pop(tensor, None)

    # -- the end

    def _finish(self) -> None:
        sources = self._graph.outputs
        given = self._given(sources, None)
        if given is None:
            parts = self._parts
            name = next(n for n, some in sources.items() if not any(one in parts for one in some))
            raise InferenceFailed(missing_output(name))
        if given.is_plain:
            self._answer([parts[0].array for parts in given.sources.values()])
        elif given.is_long:
            self._on_thread(partial(outputs_of, given), self._answer, OUTPUTS)
        else:
            self._answer(outputs_of(given))

    def _answer(self, outputs: Outputs) -> None:
        reply, self._reply = self._reply, None
        self._stop()
        taken = monotonic() - self._began
        waited = min(self._waited, taken)
        self.times = waited, taken - waited
        if reply is not None:
            reply(outputs, None)

    def _fail(self, error: CohortError) -> None:
        reply, self._reply = self._reply, None
        self._stop()
        if reply is not None:
            reply(None, error)

    def _stop(self) -> None:
        """Cancel what runs, and let go of everything."""
        for name in list(self._running):
            self._leave(name)
        for hired in self._hired.values():
            hired.leases.release()
        self._hired.clear()
        self._parts.clear()
        self._waiting.clear()
        self._due.clear()

    def _leave(self, name: str) -> None:
        """Cancel a step that runs."""
        self._end_step(name, "Cancelled")

    def _end_step(self, name: str, code: str) -> None:
        """Tell how a step ended, and release what ran it once its runs are over."""
        run = self._running.pop(name)
        hired = run.hired
        going_on = 0
        if code != "OK":
            for ticket in run.tickets:
                ticket.cancel()
                going_on += ticket.when_over(partial(self._run_over, run))
        run.left = going_on
        if not going_on:
            hired.leases.release()
        self._going_on += going_on
        rows = run.rows
        step = self._graph.steps[name]
        count = self._total if rows is None else len(rows)
        seconds = monotonic() - run.began
        ended = StepEnded(name, step.model, hired.version, code, seconds, max(count, 0))
        self._observe(ended)

    def _run_over(self, run: StepRun) -> None:
        run.left -= 1
        if not run.left:
            run.hired.leases.release()
        self._going_on -= 1
        if not self._going_on and self._when_over is not None:
            self._when_over()


def _at(name: str, work: Callable[[A], B], given: A) -> B:
    """Do something for a step, whose error then names it."""
    try:
        return work(given)
    except CohortError as error:
        raise at_step(error, name) from error
