"""Runs of a language model: one step, or several while nothing changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import numpy as np

from cohort.errors import CohortError, InferenceFailed
from cohort.generation import Piece
from cohort.generative.decoder import Decoder
from cohort.generative.sampling import Chosen, choose
from cohort.generative.sequence import ChoiceSequence
from cohort.tensors import Array

RUN_SECONDS = 0.01
"""Steps of one run begin within this time, so that other models get a slot."""

AHEAD = 4
"""A run ends if more results wait for the event loop, which would notice new callers late."""


class Prefill(NamedTuple):
    """A part of a prompt to compute.

    sequence: Its sequence.
    stop: Its end in the prompt.
    keep: The blocks of it that are kept: the name and the first token of each.
    block: The tokens of a block.
    """

    sequence: ChoiceSequence
    stop: int
    keep: Sequence[tuple[bytes, int]]
    block: int


@dataclass(slots=True)
class RunPlan:
    """The work of a run, in this order.

    freed: Slots whose content is forgotten.
    copies: Slots to copy: from, to, and the number of tokens.
    blocks: Blocks of prompts to write: the slot, the first token, and the block.
    moved: Slots whose content is forgotten after that.
    prefills: Parts of prompts to compute.
    decoding: Sequences whose next token is computed.
    begins: Sequences whose prompt is in the cache, and whose request has the logits behind it.
    resting: Other sequences in the cache.
    several: True if more than one step may run.
    """

    freed: list[int] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int, Array]] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    decoding: list[ChoiceSequence] = field(default_factory=list)
    begins: list[ChoiceSequence] = field(default_factory=list)
    resting: list[ChoiceSequence] = field(default_factory=list)
    several: bool = False


@dataclass(slots=True)
class StepResult:
    """The results of one step.

    at: When it ended, in seconds on the monotonic clock.
    seconds: Its duration.
    decoding: The part of it for the next tokens of answers.
    prompt: The tokens of prompts that it computed.
    pieces: The sequences with a new token, each with the time of the one before and its piece.
    kept: Blocks of prompts by name.
    failed: Sequences that ended with an error.
    """

    at: float = 0.0
    seconds: float = 0.0
    decoding: float = 0.0
    prompt: int = 0
    pieces: list[tuple[ChoiceSequence, float, Piece]] = field(default_factory=list)
    kept: list[tuple[bytes, Array]] = field(default_factory=list)
    failed: list[tuple[ChoiceSequence, CohortError]] = field(default_factory=list)


class GenerationRun:
    """A run on a thread of the scheduler. Implements `scheduling.Run`.

    interrupted: True if it must end after its current step; the event loop sets it.
    results: The results of its steps that were not delivered yet.

    decoder: Runs the model.
    plan: The work.
    deliver: Called on the thread after each step but the last.
    expected: Its expected duration, in seconds.
    started: When it was taken, in seconds on the monotonic clock.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: RunPlan,
        deliver: Callable[[GenerationRun], None],
        *,
        expected: float,
        started: float,
    ) -> None:
        self._decoder, self._plan, self._deliver = decoder, plan, deliver
        self.expected, self.started = expected, started
        self.exclusive = False
        self.unwanted = 0.0
        self.device_lost = ""
        self.seconds = 0.0
        self.interrupted = False
        self.results: deque[StepResult] = deque()
        self._succeeded = False

    @property
    def runs(self) -> Sequence[GenerationRun]:
        """This run, as its only part."""
        return (self,)

    @property
    def first_success(self) -> GenerationRun | None:
        """This run if it computed a token or a part of a prompt, or None."""
        return self if self._succeeded else None

    @property
    def sequences(self) -> Sequence[ChoiceSequence]:
        """The sequences that it computes."""
        plan = self._plan
        return [*plan.decoding, *plan.begins, *(one.sequence for one in plan.prefills)]

    def execute(self) -> None:
        """See `Run`."""
        start = monotonic()
        try:
            self._execute(start)
        except Exception as error:  # noqa: BLE001 - whatever it is, its callers get a response
            self._fail(error)
        self.seconds = monotonic() - start

    def _execute(self, start: float) -> None:
        plan, decoder = self._plan, self._decoder
        for slot in plan.freed:
            decoder.free(slot)
        for source, target, length in plan.copies:
            decoder.copy(source, target, length)
        for slot, first, block in plan.blocks:
            decoder.write(slot, first, block)
        for slot in plan.moved:
            decoder.free(slot)
        while True:
            before = monotonic()
            result = StepResult()
            self._decode(result)
            result.decoding = monotonic() - before if plan.decoding else 0.0
            if plan.prefills or plan.begins:
                self._prefill(result)
            result.at = monotonic()
            result.seconds = result.at - before
            self.results.append(result)
            self._succeeded |= bool(result.prompt or result.pieces)
            if self._ends(result, start):
                return
            self._deliver(self)

    def _ends(self, result: StepResult, start: float) -> bool:
        return (
            not self._plan.several
            or self.interrupted
            or result.at - start >= RUN_SECONDS
            or len(self.results) > AHEAD
            or bool(result.failed)
            or any(one.finish or len(one.tokens) > one.reserved for one in self._plan.decoding)
        )

    def _decode(self, result: StepResult) -> None:
        """Compute the next token of all decoding sequences.

        Slots between them are computed as well, and ignored. Sequences there get a token behind
        their own, which their next one overwrites.
        """
        plan, decoding = self._plan, self._plan.decoding
        if not decoding:
            return
        rows = max(one.slot for one in decoding) + 1
        tokens, lengths = np.full(rows, -1, np.int64), np.ones(rows, np.int64)
        for one in (*decoding, *plan.resting, *plan.begins, *(one[0] for one in plan.prefills)):
            if one.slot < rows:
                lengths[one.slot] = one.cached + 1
        for one in decoding:
            tokens[one.slot] = one.tokens[one.cached]
        try:
            logits = self._decoder.decode(tokens, lengths)
        except CohortError as error:
            self._note_device(error)
            result.failed += [(one, error) for one in decoding]
            return
        for one in decoding:
            one.cached += 1
        new = [one for one in decoding if one.cached == len(one.tokens)]
        places = [one.slot for one in new]
        chosen = logits if places == list(range(rows)) else logits[places]
        self._choose(chosen, new, result)

    def _prefill(self, result: StepResult) -> None:
        """Compute parts of prompts, and the first tokens of prompts that are complete."""
        first: list[tuple[ChoiceSequence, Array]] = []
        for one, stop, keep, block in self._plan.prefills:
            start = one.cached
            try:
                logits = self._decoder.prefill(one.slot, one.tokens[start:stop], start)
            except CohortError as error:
                self._note_device(error)
                result.failed.append((one, error))
                continue
            one.cached = stop
            result.prompt += stop - start
            for name, first_token in keep:
                content = self._decoder.read(one.slot, first_token, first_token + block)
                result.kept.append((name, content))
            if stop == one.prompt and one.ticket.prepared.request.choices > 1:
                one.ticket.logits = logits.copy()
            if stop == one.total:
                first.append((one, logits.copy() if len(self._plan.prefills) > 1 else logits))
        first += [(o, o.ticket.logits) for o in self._plan.begins if o.ticket.logits is not None]
        if first:
            self._choose(np.stack([one for _, one in first]), [one for one, _ in first], result)

    def _choose(
        self, logits: Array, sequences: Sequence[ChoiceSequence], result: StepResult
    ) -> None:
        if not sequences:
            return
        rows = logits.astype(np.float32, copy=False)
        found = choose(rows, [one.chooser for one in sequences])
        now = monotonic()
        for one, chosen in zip(sequences, found, strict=True):
            if isinstance(chosen, Chosen):
                result.pieces.append((one, one.last, one.add(chosen)))
                one.last = now
            else:
                result.failed.append((one, chosen))

    def _note_device(self, error: CohortError) -> None:
        if isinstance(error, InferenceFailed) and error.device_lost:
            self.device_lost = error.message

    def _fail(self, error: Exception) -> None:
        known = error if isinstance(error, CohortError) else InferenceFailed("the run failed")
        result = StepResult(at=monotonic())
        result.failed = [(one, known) for one in self.sequences]
        self.results.append(result)
