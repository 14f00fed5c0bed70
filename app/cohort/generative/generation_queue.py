"""The requests of a language model: those that wait, and those in the cache."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from cohort.batching import call_reply, share_for
from cohort.errors import CohortError, DeadlineExceeded, NotReady, Overloaded
from cohort.generation import GenerationReply, Piece
from cohort.generative.decoder import Decoder
from cohort.generative.events import (
    Admitted,
    Closed,
    Ended,
    FirstToken,
    GenerationEvent,
    GenerationState,
    Preempted,
    Stepped,
)
from cohort.generative.pace import NEW, Pace
from cohort.generative.planning import (
    PromptBudget,
    Turns,
    fill_holes,
    grow,
    has_room_for_prompt,
    lacking_by_caller,
    needed,
    next_chunks,
    next_to_enter,
    who_leaves_for,
)
from cohort.generative.prefixes import Prefixes
from cohort.generative.sequence import ChoiceSequence, Prepared, TextTicket
from cohort.generative.steps import GenerationRun, Prefill, RunPlan, StepResult
from cohort.generative.vocabulary import Vocabulary
from cohort.repository import GenerationPolicy
from cohort.scheduling import RunQueue


class Parts(NamedTuple):
    """The lengths of parts of prompts, in tokens.

    unit: The length of the smallest part that is computed.
    block: The length of the parts that are kept for later prompts, a multiple of `unit`.
    """

    unit: int
    block: int


class NextRun(NamedTuple):
    """The decision to run. Implements `scheduling.Decision`."""

    place: float
    work: float = 1.0


class NotOnLoop(NamedTuple):
    """Runs never execute on the event loop. Implements `scheduling.OnLoop`."""

    allowed: bool = False
    unpredictable: str = ""


class GenerationQueue:
    """The requests of one version. Implements `scheduling.RunQueue`; used on the event loop.

    The cache is a budget of tokens, which the sequences in it reserve. Prompts that are kept use
    what is free, and give it back to sequences at once.

    decoder: Runs the model.
    vocabulary: Its tokens.
    policy: The limits.
    budget: The maximum tokens of the cache.
    parts: The lengths of parts of prompts.
    wake: Called with this queue when it has work: `Scheduler.wake`.
    observe: Receives the events.
    name: The model and version, for operators.
    device: The device of runs.
    on_closed: Called once it is closed and its last run has ended.
    """

    shadow = False
    inline = NotOnLoop()

    def __init__(
        self,
        decoder: Decoder,
        vocabulary: Vocabulary,
        policy: GenerationPolicy,
        budget: int,
        parts: Parts,
        *,
        wake: Callable[[RunQueue], None],
        observe: Callable[[GenerationEvent], None],
        name: str,
        device: str,
        on_closed: Callable[[], None],
    ) -> None:
        self.name, self.device = name, device
        self._decoder, self._vocabulary = decoder, vocabulary
        self._policy, self._budget = policy, budget
        self._unit, self._block = parts
        self._wake, self._observe, self._on_closed = wake, observe, on_closed
        self._waiting: list[ChoiceSequence] = []
        self._running: list[ChoiceSequence] = []  # those that have a slot
        self._prefixes = Prefixes()
        self._run: GenerationRun | None = None
        self._freed: list[int] = []
        self._when_over: list[Callable[[], None]] = []
        self._timers: dict[TextTicket, asyncio.TimerHandle] = {}
        self._ready = 0.0
        self._seconds = 0.01
        self._pace = Pace(self._unit, policy.prefill_tokens)
        self._short = policy.prefill_tokens // 2
        self._entered: Counter[str] = Counter()
        self._turn = 0
        self._turns: dict[str, Turns] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- requests

    @property
    def waiting(self) -> int:
        """The number of choices that wait for a place in the cache."""
        return len(self._waiting)

    @property
    def state(self) -> GenerationState:
        """Its state now."""
        token = self._decoder.token_bytes
        return GenerationState(
            len(self._running),
            len(self._waiting),
            sum(one.reserved for one in self._running) * token,
            len(self._prefixes) * self._block * token,
            self._budget * token,
        )

    def room_for(self, priority: int) -> int:
        """Return how many more requests of this priority may wait."""
        return max(int(self._policy.max_waiting * share_for(priority)) - len(self._waiting), 0)

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if no request of this priority may wait."""
        if not self.room_for(priority):
            raise self._full()

    def _full(self) -> Overloaded:
        count = len(self._waiting)
        return Overloaded(f"the model's queue is full: {count} answers wait (max_waiting)")

    def submit(
        self,
        prepared: Prepared,
        reply: GenerationReply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        priority: int = 0,
        caller: str = "",
        variant: str = "",
        counted: bool = True,
    ) -> TextTicket:
        """Queue a request; see `TextEngine.generate`."""
        if self._closed:
            raise NotReady("this version is being unloaded")
        now = monotonic()
        timeout = max(deadline - now, 0.0) if timeout is None else timeout
        if deadline <= now:
            raise DeadlineExceeded(timeout)
        if self.room_for(priority) < prepared.request.choices:
            raise self._full()
        ticket = TextTicket(
            prepared,
            reply,
            timeout=timeout,
            priority=priority,
            caller=caller,
            variant=variant,
            counted=counted,
            on_cancel=self._on_cancel,
            on_over=self._call_when_over,
        )
        choices = range(prepared.request.choices)
        self._waiting += [ChoiceSequence(ticket, number, self._vocabulary) for number in choices]
        if deadline < float("inf"):
            loop = asyncio.get_running_loop()
            self._timers[ticket] = loop.call_later(deadline - now, self._too_late, ticket)
        self._continue()
        return ticket

    def _continue(self) -> None:
        """Plan again: soon if no run is in progress, or else after its current step."""
        if self._run is not None:
            self._run.interrupted = True
            return
        self._ready = monotonic()
        self._wake(self)

    def _on_cancel(self, ticket: TextTicket) -> None:
        self._forget(ticket, "Cancelled")

    def _too_late(self, ticket: TextTicket) -> None:
        self._end(ticket, DeadlineExceeded(ticket.timeout))

    def _end(self, ticket: TextTicket, error: CohortError | None) -> None:
        reply, ticket.reply = ticket.reply, None
        if reply is None:
            return
        self._forget(ticket, "OK" if error is None else error.code)
        call_reply(reply.ended, ticket.usage, error)

    def _forget(self, ticket: TextTicket, code: str) -> None:
        if (timer := self._timers.pop(ticket, None)) is not None:
            timer.cancel()
        self._waiting = [one for one in self._waiting if one.ticket is not ticket]
        usage = ticket.usage
        if ticket.counted:
            seconds = monotonic() - ticket.arrived
            self._observe(
                Ended(code, usage.prompt, usage.cached, usage.answer, seconds, ticket.variant)
            )
        if self._running:
            self._continue()

    def _call_when_over(self, then: Callable[[], None]) -> bool:
        if self._run is None:
            return False
        self._when_over.append(then)
        return True

    def close(self) -> None:
        """Accept no more requests, fail all others with NotReady, and free the model."""
        if self._closed:
            return
        self._closed = True
        for ticket in {one.ticket: None for one in (*self._running, *self._waiting)}:
            self._end(ticket, NotReady("this version is being unloaded"))
        self._observe(Closed())
        if self._run is None:
            self._on_closed()
        else:
            self._run.interrupted = True
            self._decoder.stop()

    # -- runs

    @property
    def running(self) -> Collection[GenerationRun]:
        """The run in progress."""
        return () if self._run is None else (self._run,)

    def seconds_for(self, work: float, /) -> float:
        """Return the expected duration of a run, in seconds."""
        return self._seconds * work

    def next_batch(self, now: float) -> NextRun | float:
        """Decide to run if there is work, and no run in progress."""
        if self._run is not None or not (self._running or self._waiting):
            return float("inf")
        return NextRun(self._ready)

    def cut(self, decision: NextRun, seconds: float) -> None:
        """Return None: a step is not divided."""

    def take(self, decision: NextRun, now: float) -> GenerationRun:
        """Plan the next run."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._run = GenerationRun(
            self._decoder, self._plan(now), self._deliver_soon, expected=self._seconds, started=now
        )
        return self._run

    def execute_inline(self, batch: GenerationRun, now: float) -> bool:
        """Return False: a thread must execute it."""
        return False

    def finish(self, batch: GenerationRun) -> None:
        """Deliver the results of a run, and continue."""
        self._run = None
        self._seconds += NEW * (batch.seconds - self._seconds)
        self._ready = monotonic()
        self._deliver(batch)
        over, self._when_over = self._when_over, []
        for then in over:
            then()
        if self._closed:
            self._on_closed()
        elif self._running or self._waiting:
            self._wake(self)

    def _deliver_soon(self, run: GenerationRun) -> None:
        """Deliver results of a run that continues; called on its thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no reply is expected
                self._loop.call_soon_threadsafe(self._deliver, run)

    def _deliver(self, run: GenerationRun) -> None:
        while run.results:
            result = run.results.popleft()
            for name, block in result.kept:
                self._prefixes.add(name, block)
            decoding = result.decoding
            self._pace.learn(result.prompt, result.seconds - decoding, decoding)
            self._report(result)
            self._send(result)
            for one, error in result.failed:
                self._end(one.ticket, error)

    def _report(self, result: StepResult) -> None:
        counted = [(one, last) for one, last, _ in result.pieces if one.ticket.counted]
        for one, last in counted:
            if not last:
                self._observe(FirstToken(result.at - one.arrived))
        if not (result.prompt or counted):
            return
        between = [result.at - last for _, last in counted if last]
        variants = [one.ticket.variant for one, _ in counted]
        self._observe(Stepped(result.prompt, len(counted), between, result.seconds, variants))

    def _send(self, result: StepResult) -> None:
        pieces: dict[TextTicket, list[Piece]] = {}
        for one, _, piece in result.pieces:
            if not one.ticket.over:
                pieces.setdefault(one.ticket, []).append(piece)
        for ticket, some in pieces.items():
            ticket.answered += len(some)
            ticket.open_choices -= sum(bool(piece.finish) for piece in some)
            if ticket.reply is not None:
                call_reply(ticket.reply.pieces, some)
            if not ticket.open_choices:
                self._end(ticket, None)

    # -- plans

    def _plan(self, now: float) -> RunPlan:
        plan = RunPlan()
        for one in [one for one in self._running if one.ticket.over or one.finish]:
            self._leave(one)
        free = self._budget - sum(one.reserved for one in self._running)
        growth = grow(self._running, free)
        for position, reserved in growth.grown.items():
            self._running[position].reserved = reserved
        for one in [self._running[position] for position in growth.out]:
            self._preempt(one, now)
        self._enter(plan, now)
        self._evict()
        plan.freed, self._freed = self._freed, []
        self._move(plan)
        self._schedule(plan)
        return plan

    def _slots(self) -> set[int]:
        return {one.slot for one in self._running}

    def _leave(self, one: ChoiceSequence) -> None:
        """Take a sequence out of the cache."""
        self._running.remove(one)
        self._freed.append(one.slot)
        one.slot, one.reserved, one.cached = -1, 0, 0

    def _preempt(self, one: ChoiceSequence, now: float) -> None:
        if one.ticket.counted:
            self._observe(Preempted(one.total, one.ticket.variant))
        self._leave(one)
        one.preempted, one.since = True, now
        self._waiting.append(one)

    def _enter(self, plan: RunPlan, now: float) -> None:
        """Give slots to waiting sequences, as far as there is room."""
        placed = False
        while able := self._able_to_enter():
            one = able[next_to_enter(able, self._running, self._entered)]
            free = self._budget - sum(other.reserved for other in self._running)
            if len(self._running) >= self._decoder.slots or needed(one) > free:
                leaves = None if placed else who_leaves_for(one, self._running)
                if leaves is None:
                    return
                self._preempt(self._running[leaves], now)
                continue
            self._waiting.remove(one)
            self._entered[one.caller] += 1
            self._turns.setdefault(one.caller, Turns(self._turn - 0.5))  # before the last one
            self._place(one, plan, now)
            placed = True

    def _able_to_enter(self) -> list[ChoiceSequence]:
        """Return those that no other prompt of their request, or of their caller, precedes."""
        if not self._waiting:
            return []
        most = self._policy.prefill_tokens
        lacking = lacking_by_caller(self._running, most)
        beginning = {one.ticket for one in self._running if not one.decodes}
        return [
            one
            for one in self._waiting
            if one.ticket not in beginning and has_room_for_prompt(one, lacking, most)
        ]

    def _place(self, one: ChoiceSequence, plan: RunPlan, now: float) -> None:
        """Give a sequence a slot, with the keys and values that others computed."""
        free = set(range(self._decoder.slots)) - self._slots()
        behind = [slot for slot in free if slot >= len(self._running)]
        one.slot = min(free if one.prompt <= self._short or not behind else behind)
        one.reserved = needed(one)
        ticket, block = one.ticket, self._block
        ticket.entered = ticket.entered or now
        source = next((s for s in self._running if s.ticket is ticket and s.decodes), None)
        if ticket.logits is not None and source is not None:
            plan.copies.append((source.slot, one.slot, one.prompt))
            one.cached = one.prompt
            if one.total == one.prompt:
                plan.begins.append(one)
        else:
            for number, content in enumerate(self._prefixes.find(ticket.prepared.blocks)):
                plan.blocks.append((one.slot, number * block, content))
                one.cached += block
            if not one.preempted and not one.number:
                ticket.cached = one.cached
        if ticket.counted:
            waited = now - one.since
            self._observe(Admitted(one.prompt, one.cached, waited, one.preempted))
        self._running.append(one)

    def _evict(self) -> None:
        """Drop kept blocks until the budget holds for all."""
        free = self._budget - sum(one.reserved for one in self._running)
        while len(self._prefixes) * self._block > free:
            self._prefixes.drop()

    def _move(self, plan: RunPlan) -> None:
        """Give the first slots to the sequences that a step computes."""
        decoding = {one.slot: one.cached for one in self._running if one.decodes}
        for source, target in fill_holes(decoding, self._slots()):
            one = next(one for one in self._running if one.slot == source)
            plan.copies.append((source, target, one.cached))
            plan.blocks = [
                (target if slot == source else slot, first, block)
                for slot, first, block in plan.blocks
            ]
            one.slot = target
            plan.moved.append(source)

    def _schedule(self, plan: RunPlan) -> None:
        beginning = set(map(id, plan.begins))
        ready = [one for one in self._running if one.decodes and id(one) not in beginning]
        most = self._policy.prefill_tokens
        budget = self._pace.beside_answers() if ready else PromptBudget(most, most)
        chunks = next_chunks(self._running, self._unit, self._short, budget, self._turns)
        self._take_turns({self._running[position].caller for position, _ in chunks})
        room = self._budget - sum(one.reserved for one in self._running)
        room = room // self._block - len(self._prefixes)
        for position, stop in chunks:
            one = self._running[position]
            keep = self._to_keep(one, stop)[: max(room, 0)]
            room -= len(keep)
            plan.prefills.append(Prefill(one, stop, keep, self._block))
        plan.decoding = ready
        chosen = {id(prefill.sequence) for prefill in plan.prefills}
        plan.resting = [one for one in self._running if not one.decodes and id(one) not in chosen]
        plan.several = len(plan.decoding) == len(self._running) > 0

    def _take_turns(self, callers: Collection[str]) -> None:
        """Note whose prompts are computed, and forget callers who have left."""
        self._turn += bool(callers)
        for caller in callers:
            self._turns[caller] = Turns(self._turn, self._turns[caller].taken + 1)
        running = {one.caller for one in self._running}
        self._turns = {one: turns for one, turns in self._turns.items() if one in running}
        if len(self._entered) > len(running):
            present = running.union(one.caller for one in self._waiting)
            self._entered = Counter({c: n for c, n in self._entered.items() if c in present})

    def _to_keep(self, one: ChoiceSequence, stop: int) -> list[tuple[bytes, int]]:
        """Return the blocks of the next part of a prompt that are not kept yet."""
        block, names = self._block, one.ticket.prepared.blocks
        numbers = range(one.cached // block, min(stop // block, len(names)))
        return [(names[n], n * block) for n in numbers if names[n] not in self._prefixes]
