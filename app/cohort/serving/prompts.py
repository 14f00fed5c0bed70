"""Several prompts in one request to a language model: one answer, one count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cohort.batching import Times
from cohort.errors import CohortError
from cohort.generation import (
    GenerationReply,
    GenerationRequest,
    Piece,
    PreparedGeneration,
    Usage,
)
from cohort.registry import Cancellable

Submit = Callable[[PreparedGeneration, GenerationReply], Cancellable]


@dataclass(frozen=True)  # without slots, for the cached property
class PreparedPrompts:
    """Several prepared prompts. Implements `PreparedGeneration`, with the first one's text.

    request: The request with all prompts.
    each: The prepared prompts, in order.
    """

    request: GenerationRequest
    each: Sequence[PreparedGeneration]

    @property
    def text(self) -> str:
        """The text of the first prompt."""
        return self.each[0].text

    @cached_property
    def prompt(self) -> Sequence[int]:
        """The tokens of all prompts."""
        return [token for one in self.each for token in one.prompt]

    @property
    def max_tokens(self) -> int:
        """The maximum of new tokens of a choice."""
        return max(one.max_tokens for one in self.each)


def prompts_of(prepared: PreparedGeneration) -> Sequence[PreparedGeneration]:
    """Return each prepared prompt of a request."""
    return prepared.each if isinstance(prepared, PreparedPrompts) else (prepared,)


class PromptsTicket:
    """The prompts of one request in an engine. Implements `Cancellable`.

    If one prompt fails, the request fails, and the others are cancelled.

    prepared: The prompts.
    reply: Receives all choices, and the sum of the tokens.
    submit: Queues one prompt. It may raise; then no prompt stays queued.
    """

    def __init__(self, prepared: PreparedPrompts, reply: GenerationReply, submit: Submit) -> None:
        self._reply: GenerationReply | None = reply  # None after the end
        self._left = len(prepared.each)
        self._used = Usage(0, 0)
        self._tickets: list[Cancellable] = []
        try:
            for number, one in enumerate(prepared.each):
                part = _PromptReply(self, number * one.request.choices)
                self._tickets.append(submit(one, part))
        except CohortError:
            self.cancel()
            raise

    @property
    def times(self) -> Times | None:
        """The times of the first prompt."""
        return self._tickets[0].times if self._tickets else None

    def cancel(self) -> None:
        """Cancel all prompts."""
        self._reply = None
        for ticket in self._tickets:
            ticket.cancel()

    def when_over(self, then: Callable[[], None]) -> bool:
        """Call `then` once no prompt is in a run; return False if none is."""
        running = 0

        def over() -> None:
            nonlocal running
            running -= 1
            if not running:
                then()

        for ticket in self._tickets:
            running += ticket.when_over(over)
        return running > 0

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """Pass pieces of one prompt on."""
        if self._reply is not None:
            self._reply.pieces(pieces)

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        """Count the end of one prompt, and end the answer with the last one."""
        reply = self._reply
        if reply is None:
            return
        self._used = Usage(*map(sum, zip(self._used, usage, strict=True)))
        self._left -= 1
        if error is not None or not self._left:
            self.cancel()
            reply.ended(self._used, error)


class _PromptReply:
    """Numbers the choices of one prompt after those of the prompts before it."""

    def __init__(self, together: PromptsTicket, first: int) -> None:
        self._together = together
        self._first = first

    def pieces(self, pieces: Sequence[Piece]) -> None:
        first = self._first
        if first:
            pieces = [piece._replace(choice=piece.choice + first) for piece in pieces]
        self._together.pieces(pieces)

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        self._together.ended(usage, error)
