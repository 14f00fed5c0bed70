"""Execution of one request of a pipeline.

All work runs on the event loop, except operations on large tensors, which run on a thread. A step
begins as soon as its tensors are available. Tensors and steps that are no longer needed are dropped
and cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from math import prod
from time import monotonic
from typing import TypeVar

from cohort.batching import Outputs, Reply, Times
from cohort.errors import CohortError, InferenceFailed
from cohort.pipelines.deciding import (
    LONG_BYTES,
    Decision,
    decide,
    missing_output,
    outputs_of,
)
from cohort.pipelines.graph import GraphStep
from cohort.pipelines.items import fan_in
from cohort.pipelines.progress import OUTPUTS, Progress
from cohort.pipelines.rows import Part
from cohort.pipelines.step_run import StepRun, Terms
from cohort.pipelines.steps import Hired, Hiring, StepEnded, StepObserver, at_step
from cohort.pipelines.wiring import Wiring
from cohort.tensors import Arrays

A = TypeVar("A")
B = TypeVar("B")


class PipelineRun:
    """One request of a pipeline. Implements `NotedTicket`.

    wiring: The pipeline.
    hiring: Leases the engines that run the steps.
    inputs: The arrays by name.
    reply: Called once, unless the request is cancelled.
    deadline, timeout: The deadline of the request and the time limit it comes from, in seconds.
    requests, priority: As in `RequestQueue.submit`.
    observe: Called with each ended step.

    times: Seconds that the steps waited in queues, and the rest of the time; None until answered.
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
        self._graph, self._hiring = graph, hiring
        self._reply: Reply | None = reply
        self._terms = Terms(deadline, timeout, requests, priority)
        self._observe = observe
        self._progress = Progress(wiring, inputs)
        self._hired: dict[str, Hired] = {}
        self._running: dict[str, StepRun] = {}
        self._due: deque[str] = deque()
        self._began = monotonic()
        self._waited = 0.0
        self._going_on = 0  # cancelled runs that have not ended
        self._when_over: Callable[[], None] | None = None
        self.times: Times | None = None

    # -- for the submitter

    def start(self) -> None:
        """Lease all models, and begin. If it raises a CohortError, `reply` is not called."""
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
        if outputs is not None:  # no step had to run; reply only after `submit` has returned
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
        """Begin every step whose tensors are ready."""
        while self._due and self._reply is not None:
            name = self._due.popleft()
            if name in self._progress.waiting and self._progress.is_ready(name):
                del self._progress.waiting[name]
                if name:
                    self._guard(self._begin, self._graph.steps[name])
                else:
                    self._guard(self._finish)

    def _guard(self, go_on: Callable[..., None], *arguments: object) -> None:
        """Call `go_on`; if it raises an exception, fail the request."""
        try:
            go_on(*arguments)
        except CohortError as error:
            self._fail(error)
        except Exception as bug:  # noqa: BLE001
            failure = InferenceFailed("the server failed in this pipeline", blames_input=False)
            failure.__cause__ = bug
            self._fail(failure)

    def _begin(self, step: GraphStep) -> None:
        if step.plain and self._progress.total < 0:  # every available tensor has all rows
            parts = self._progress.parts
            try:
                inputs = {name: parts[tensor].array for name, tensor in step.plain}
            except KeyError:
                self._skip(step)
            else:
                self._submit(step, Decision(None, inputs))
            return
        given = self._progress.given(step.sources, step)
        if given is None:
            self._skip(step)
        elif given.is_plain:
            inputs = {name: parts[0].array for name, parts in given.sources.items()}
            self._submit(step, Decision(None, inputs))
        elif given.is_long:
            self._on_thread(partial(decide, given), partial(self._decided, step), step)
        else:
            self._decided(step, _at(step, decide, given))

    def _decided(self, step: GraphStep, decision: Decision | None) -> None:
        if decision is None:
            self._skip(step)
        else:
            self._submit(step, decision)

    def _on_thread(
        self, work: Callable[[], object], then: Callable[..., None], step: GraphStep | None
    ) -> None:
        """Run `work` on a thread for a step or the outputs, and pass its result to `then`."""

        def done(future: asyncio.Future[object]) -> None:
            error = future.exception()
            if self._reply is None or (step is not None and step.name in self._progress.over):
                return
            if isinstance(error, CohortError):
                callers = step is not None and not step.steps
                self._fail(error if step is None else at_step(error, step.name, callers=callers))
                return
            self._guard(lambda: then(future.result()))
            self._proceed()

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(done)

    def _submit(self, step: GraphStep, decision: Decision) -> None:
        hired = self._hired.pop(step.name)
        run = StepRun(step, hired, decision, self._progress.total, self._ran)
        self._running[step.name] = run
        self._progress.release(step.tensors)
        if run.items is not None and not run.count:
            self._end_step(step.name, "Skipped")
            self._keep(run)
            return
        try:
            run.submit(self._terms)
        except CohortError as error:
            self._end_step(step.name, error.code)
            raise at_step(error, step.name, callers=not step.steps) from error

    def _ran(self, run: StepRun, error: CohortError | None) -> None:
        """Handle the end of a step that ran or failed."""
        step = run.step
        if self._reply is None or self._running.get(step.name) is not run:
            return
        self._waited += run.waited
        if error is not None:
            self._end_step(step.name, error.code)
            self._fail(at_step(error, step.name, callers=not step.steps))
            return
        self._end_step(step.name, "OK")
        self._guard(self._keep, run)
        self._proceed()

    def _keep(self, run: StepRun) -> None:
        """Keep the outputs of a step that are still needed."""
        step, items = run.step, run.items
        outputs = _at(step, StepRun.take_outputs, run)
        if items is None:
            self._kept(run, outputs)
            return
        specs = run.hired.facts.outputs
        row_bytes = sum([one.nbytes // max(len(one), 1) for one in outputs if one.ndim])
        back = partial(fan_in, items, outputs)
        if items.chosen is not None and prod(items.lengths) * row_bytes > LONG_BYTES:
            self._on_thread(partial(back, specs), partial(self._kept, run), step)
        else:
            self._kept(run, _at(step, back, specs))

    def _kept(self, run: StepRun, outputs: Outputs) -> None:
        step, rows = run.step, run.rows
        count = self._progress.total if rows is None else len(rows)
        for spec, array in zip(run.hired.facts.outputs, outputs, strict=True):
            tensor = f"{step.name}.{spec.name}"
            if self._progress.is_needed(tensor):
                if count >= 0 and (not array.ndim or len(array) != count):
                    raise InferenceFailed(
                        f"step {step.name!r}: output {spec.name!r} has shape "
                        f"{list(array.shape)} for {count} rows; if axis 0 does not count rows, "
                        "set conditions: request"
                    )
                self._progress.parts[tensor] = Part(array, rows)
        self._finish_step(step.name)

    def _skip(self, step: GraphStep) -> None:
        hired = self._hired.pop(step.name)
        hired.leases.release()
        self._observe(StepEnded(step.name, step.model, hired.version, "Skipped", 0.0, 0))
        self._progress.release(step.tensors)
        self._finish_step(step.name)

    def _finish_step(self, name: str) -> None:
        """Mark a step as finished or skipped, and queue its consumers."""
        self._progress.over.add(name)
        self._due.extend(self._graph.consumers[name])
        if self._graph.alternatives:
            self._trim()

    def _trim(self) -> None:
        """Abandon alternatives that come after a tensor that has all rows."""
        graph = self._graph
        for name in list(self._progress.waiting):
            for tensors in (graph.steps[name].sources if name else graph.outputs).values():
                if len(tensors) > 1:
                    self._trim_sources(tensors)

    def _trim_sources(self, tensors: tuple[str, ...]) -> None:
        for place, tensor in enumerate(tensors[:-1]):
            part = self._progress.parts.get(tensor)
            if part is not None and part.rows is None:
                for later in tensors[place + 1 :]:
                    self._abandon_if_unneeded(later)
                return

    def _abandon_if_unneeded(self, tensor: str) -> None:
        """Cancel the step of a tensor if no waiting step or output still needs that step."""
        step = self._graph.places[tensor].step
        if not step or step in self._progress.over:
            return
        for name in self._progress.waiting:
            if name != step and self._progress.still_needs(name, step):
                return
        if step in self._running:
            self._leave(step)
        elif step in self._hired:  # otherwise it has run, and a thread assembles its items
            self._hired.pop(step).leases.release()
            self._progress.waiting.pop(step, None)
            self._progress.release(self._graph.steps[step].tensors)
        self._progress.over.add(step)
        self._due.append(OUTPUTS)
        for needed in self._graph.steps[step].steps:
            for one in self._graph.steps[step].tensors:
                if self._graph.places[one].step == needed:
                    self._abandon_if_unneeded(one)

    # -- the end

    def _finish(self) -> None:
        sources = self._graph.outputs
        given = self._progress.given(sources, None)
        if given is None:
            parts = self._progress.parts
            name = next(n for n, some in sources.items() if not any(one in parts for one in some))
            raise InferenceFailed(missing_output(name))
        if given.is_plain:
            self._answer([parts[0].array for parts in given.sources.values()])
        elif given.is_long:
            self._on_thread(partial(outputs_of, given), self._answer, None)
        else:
            self._answer(outputs_of(given))

    def _answer(self, outputs: Outputs) -> None:
        reply, self._reply = self._reply, None
        self._stop()
        taken = monotonic() - self._began
        waited = min(self._waited, taken)
        self.times = waited, taken - waited, None
        if reply is not None:
            reply(outputs, None)

    def _fail(self, error: CohortError) -> None:
        reply, self._reply = self._reply, None
        self._stop()
        if reply is not None:
            reply(None, error)

    def _stop(self) -> None:
        """Cancel running steps, release all leases, and drop all tensors."""
        for name in list(self._running):
            self._leave(name)
        for hired in self._hired.values():
            hired.leases.release()
        self._hired.clear()
        self._progress.parts.clear()
        self._progress.waiting.clear()
        self._due.clear()

    def _leave(self, name: str) -> None:
        """Cancel a running step."""
        self._end_step(name, "Cancelled")

    def _end_step(self, name: str, code: str) -> None:
        """Report how a step ended, and release its model once the step's runs have ended."""
        ended, going_on = self._running.pop(name).end(code, self._run_over)
        self._going_on += going_on
        self._observe(ended)

    def _run_over(self) -> None:
        self._going_on -= 1
        if not self._going_on and self._when_over is not None:
            self._when_over()


def _at(step: GraphStep, work: Callable[[A], B], given: A) -> B:
    """Call `work` for a step, and add the step's name to its errors."""
    try:
        return work(given)
    except CohortError as error:
        raise at_step(error, step.name, callers=not step.steps) from error
