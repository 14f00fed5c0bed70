"""Leases: a request holds its version until the response is sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Self

from cohort.batching import Outputs, Reply, Times
from cohort.connections.memory import MemoryHold
from cohort.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    InvalidInput,
    NotReady,
    did_you_mean,
    quoted,
)
from cohort.generation import GenerationReply, PreparedGeneration
from cohort.observability.tracing import RequestSpan, set_current
from cohort.registry import BatchEngine, Cancellable, NotedTicket, RequestNotes, TextEngine
from cohort.rollouts import ObservedRequest
from cohort.serving.limit import ConcurrencyLimit
from cohort.serving.observed_answer import ObservedAnswer
from cohort.serving.observing import Observer
from cohort.serving.prompts import PreparedPrompts, PromptsTicket
from cohort.serving.request_context import NOBODY, RequestContext
from cohort.serving.served import ServedVersion
from cohort.serving.token_charge import TokenCharge
from cohort.tensors import Array, Arrays, TensorSpec, check_inputs, sent_specs

NOTHING_NOTED = RequestNotes()


class Lease:
    """One request's hold on one version, from the choice to the reply.

    served: The version.
    limit: Counts the lease while it is open.
    observer: Is notified when the request ends.
    context: The request's context; default: nothing is known of it.
    variant: The rollout's variant that was chosen or pinned; default "": no variant.
    observed: Reports the outcome to the rollout that chose the version; default None: no rollout
        did.
    notes: Parts of the request that are not inputs; default: empty. Only engines with `submit_with`
        receive them.
    """

    __slots__ = (
        "_engine", "_limit", "_noted", "_observed", "_observer", "_started", "_stays", "_ticket",
        "context", "notes", "served", "variant",
    )  # fmt: skip

    def __init__(
        self,
        served: ServedVersion,
        limit: ConcurrencyLimit,
        observer: Observer,
        context: RequestContext = NOBODY,
        variant: str = "",
        observed: ObservedRequest | None = None,
        notes: RequestNotes = NOTHING_NOTED,
    ) -> None:
        self._started = monotonic()
        self._observer = observer
        self.context = context
        self._limit = limit
        self._engine: BatchEngine | None = served.engine
        self._ticket: Cancellable | None = None
        self._noted: NotedTicket | None = None
        self._stays: tuple[bool, MemoryHold | None] = False, None  # held until its run ends
        self._observed = observed
        self.served = served
        self.notes = notes
        self.variant = variant
        served.engine.leases.count += 1
        limit.leases += 1

    @property
    def model(self) -> str:
        """The model's name."""
        return self.served.model

    @property
    def version(self) -> str:
        """The version's number."""
        return self.served.version

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The inputs' specs, in the model's order."""
        return self.served.inputs

    @property
    def only_input(self) -> Sequence[TensorSpec]:
        """The specs of inputs that a request may send as its single unnamed input."""
        served = self.served
        return served.inputs or [*served.optional_inputs]

    def inputs_for(self, names: Collection[str]) -> Sequence[TensorSpec]:
        """The inputs' specs, with the optional ones among `names`."""
        served = self.served
        if not served.optional_inputs:
            return served.inputs
        return sent_specs(served.inputs, served.optional_inputs, names)

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """The outputs' specs, in the model's order."""
        return self.served.outputs

    def submit(self, arrays: Arrays, reply: Reply, *, timeout: float | None = None) -> None:
        """Queue the request.

        arrays: The inputs by name.
        reply: Called once on the event loop, with the outputs in the model's order or the error;
            never after `leave`.
        timeout: The caller's limit in seconds. The smaller of this limit and the model's timeout
            applies. Default None: the model's timeout.

        Raises InvalidInput, Overloaded, NotReady, DeadlineExceeded or SequenceEnded.
        """
        engine = self._engine
        if engine is None:
            raise NotReady("this lease is closed")
        check_inputs(self.inputs_for(arrays), arrays)
        limit = _smaller(timeout, engine.timeout)
        if self._observed is not None:
            reply = self._observed.submitted(
                arrays, self.outputs, reply, tight_deadline=limit < engine.timeout
            )
            if self.context.span is not None:  # the shadow's copy is made in it
                reply = _within(self.context.span, reply)
        deadline = self._started + limit
        priority = self.context.priority
        if (noted := self.served.noted) is None:
            self._ticket = engine.submit(
                arrays, reply, deadline=deadline, timeout=limit, priority=priority
            )
        else:
            notes = self.notes
            if self.served.text is not None:
                notes = notes._replace(variant=self.variant, charge=self._charge_of_tokens())
            self._ticket = self._noted = noted.submit_with(
                notes, arrays, reply, deadline=deadline, timeout=limit, priority=priority
            )

    def _charge_of_tokens(self) -> Callable[[Sequence[PreparedGeneration]], TokenCharge] | None:
        caller = self.context.caller
        if caller is None or caller.tokens_per_minute is None:
            return None
        return partial(TokenCharge, caller)

    @property
    def text(self) -> TextEngine:
        """The engine of its language model. Raises InvalidInput if it is another kind of model."""
        if (text := self.served.text) is None:
            raise InvalidInput(
                f"model {quoted(self.model)} is not a language model: it answers tensors, at "
                f"/models/{self.model}/predict",
                "model",
            )
        return text

    def generate(
        self,
        prepared: PreparedGeneration,
        reply: GenerationReply,
        *,
        timeout: float | None = None,
    ) -> None:
        """Queue a request to a language model, which `text.prepare` prepared.

        reply: Called on the event loop, with each piece of the answer and then its end; never after
            `leave`.
        timeout: As in `submit`.

        Raises InvalidInput, Overloaded, NotReady or DeadlineExceeded.
        """
        engine = self._engine
        if engine is None:
            raise NotReady("this lease is closed")
        limit = _smaller(timeout, engine.timeout)
        if self._observed is not None:
            reply = ObservedAnswer(
                prepared,
                reply,
                self._observed,
                self.served,
                tight_deadline=limit < engine.timeout,
            )
        caller = self.context.caller
        submit = partial(
            self.text.generate,
            deadline=self._started + limit,
            timeout=limit,
            priority=self.context.priority,
            caller="" if caller is None else caller.name,
            variant=self.variant,
        )
        if isinstance(prepared, PreparedPrompts):
            self._ticket = PromptsTicket(prepared, reply, submit)
        else:
            self._ticket = submit(prepared, reply)

    def check_time(self, timeout: float | None = None) -> None:
        """Raise DeadlineExceeded if the time limit that `submit` would apply has passed.

        Raises Cancelled if its client disconnected. May be called on any thread.
        """
        engine = self._engine
        if engine is None:
            raise Cancelled("the client disconnected or cancelled")
        limit = _smaller(timeout, engine.timeout)
        if monotonic() >= self._started + limit:
            raise DeadlineExceeded(limit)

    def check_room(self) -> None:
        """Raise Overloaded if the queue is full, before work is put into the request."""
        if self._engine is not None:
            self._engine.check_room(self.context.priority)

    def select(self, names: Sequence[str] | None) -> Sequence[int]:
        """Return the positions of the requested outputs; if `names` is None, of all transportable
        ones.

        Raises InvalidInput for a name that is neither an output nor a sequence, and for more names
        than outputs. Raises it for an output that is not transportable, and for a model without
        one.
        """
        specs = self.served.outputs
        if names is None:
            if not self.served.sent and specs:
                specs[0].dtype  # noqa: B018 - raises
            return self.served.sent
        if parts := self.served.parts:
            names = [part for name in names[: len(specs) + 1] for part in parts.get(name, (name,))]
        positions = {spec.name: position for position, spec in enumerate(specs)}
        for name in names[: len(specs) + 1]:  # more names include a repeated or unknown one
            if name not in positions:
                raise InvalidInput(
                    f"output {quoted(name)} not found{did_you_mean(name, positions)}"
                )
            specs[positions[name]].dtype  # noqa: B018
        if len(names) > len(specs):
            raise InvalidInput(
                f"the request names {len(names)} outputs, but the model has {len(specs)}"
            )
        return [positions[name] for name in names]

    @property
    def labels(self) -> Sequence[str]:
        """The names of the model's classes by index; empty if it has no names."""
        return self.served.engine.labels

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return monotonic() - self._started

    @property
    def times(self) -> Times | None:
        """The seconds that the request waited, those of its run, and the run; None before it."""
        return None if self._ticket is None else self._ticket.times

    def leave(self) -> None:
        """Cancel the request of a lost client. The run stops if no other request waits for it."""
        if self._ticket is not None:
            self._ticket.cancel()

    def close(self, error: BaseException | None = None, hold: MemoryHold | None = None) -> None:
        """Report the outcome of the request, and release the version. Further calls do nothing.

        error: The error that the caller received; default None: the request succeeded.
        hold: The memory of its inputs, if its run may still use them; default None: no memory is
            held.

        If its run continues, the request counts towards the limits until the run ends.
        """
        engine = self._engine
        if engine is None:
            return
        self._engine = None
        ticket = self._ticket
        if ticket is None or error is None or not ticket.when_over(self._run_over):
            self._limit.leases -= 1
            engine.leases.release()
        else:
            caller = self.context.caller
            self._stays = caller is not None and caller.stay(), hold and hold.copy()
        now = monotonic()
        seconds = now - self._started
        if isinstance(error, CohortError):
            say_whose(error, self.served, self.variant)
        self._observer.ended(self.served, self.variant, error, seconds, context=self.context)
        remembered = self._noted is not None and self._noted.remembered
        if self._observed is not None and not remembered:  # the rollout counts a run once
            if self.context.span is None:
                self._observed.close(error, now=now, seconds=seconds)
            else:
                with set_current(self.context.span):
                    self._observed.close(error, now=now, seconds=seconds)

    def _run_over(self) -> None:
        self._limit.leases -= 1
        self.served.engine.leases.release()
        counted, hold = self._stays
        if counted and self.context.caller is not None:
            self.context.caller.leave()
        if hold is not None:
            hold.set(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)


class GroupLease:
    """The hold of a group of coalesced requests on one version.

    served: The version.
    limit: Counts the requests while the lease is open.
    started: When the first request was read, in seconds on the monotonic clock.
    count: The number of requests.
    priority: The priority of each request; default 0.
    variant: The rollout's variant that was chosen for all of them; default "": no variant.
    """

    __slots__ = ("_limit", "_open", "_priority", "count", "served", "started", "variant")

    def __init__(
        self,
        served: ServedVersion,
        limit: ConcurrencyLimit,
        started: float,
        count: int,
        priority: int = 0,
        variant: str = "",
    ) -> None:
        self._limit = limit
        self._priority = priority
        self._open = True
        self.served = served
        self.started = started
        self.count = count
        self.variant = variant
        limit.leases += count
        served.engine.leases.count += count

    def submit(self, array: Array, reply: Reply) -> Cancellable:
        """Queue the group as one request.

        array: The input, [rows, width] in its datatype.
        reply: Called once on the event loop, with the outputs in the model's order or the error.

        Raises as `Lease.submit`.
        """
        engine = self.served.engine
        timeout = engine.timeout
        return engine.submit(
            {self.served.inputs[0].name: array},
            reply,
            deadline=self.started + timeout,
            timeout=timeout,
            requests=self.count,
            priority=self._priority,
        )

    def release(self) -> None:
        """Release the version. Further calls do nothing."""
        if self._open:
            self._open = False
            self._limit.leases -= self.count
            self.served.engine.leases.release(self.count)


def say_whose(error: CohortError, served: ServedVersion, variant: str) -> None:
    """Add the request's model, version and variant to the log lines of an error."""
    error.log_context = {"model": served.model, "version": served.version}
    if variant:
        error.log_context = {**error.log_context, "variant": variant}


def _within(span: RequestSpan, reply: Reply) -> Reply:
    """Return a reply whose work is traced in `span`."""

    def replied(outputs: Outputs | None, error: CohortError | None) -> None:
        with set_current(span):
            reply(outputs, error)

    return replied


def _smaller(timeout: float | None, limit: float) -> float:
    """Return the caller's limit or the model's timeout, whichever is shorter, in seconds."""
    return limit if timeout is None else min(timeout, limit)
