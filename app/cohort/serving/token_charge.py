"""The tokens of a request to a language model, charged to its caller's quota."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.auth import Caller
from cohort.batching import Outputs, Reply
from cohort.errors import CohortError
from cohort.generation import Piece, PreparedGeneration
from cohort.registry import Cancellable, TokenTicket
from cohort.serving.prompts import prompts_of


class TokenCharge:
    """Charges a request for all tokens that it may use, and gives the unused ones back.

    caller: Has a quota of tokens.
    prepared: The request.

    Raises Overloaded if the quota is exhausted.
    """

    def __init__(self, caller: Caller, prepared: PreparedGeneration) -> None:
        prompts = prompts_of(prepared)
        answer = sum(one.max_tokens * one.request.choices for one in prompts)
        self._prompt = sum(len(one.prompt) for one in prompts)
        self._charged = self._prompt + answer
        self._used = 0
        caller.charge_tokens(self._charged)
        self._caller: Caller | None = caller

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """Count new pieces of the answer."""
        self._used += sum(len(piece.tokens) for piece in pieces)

    def settle(self) -> None:
        """Give back what was not used; a request without any token costs nothing. Call it once."""
        if self._caller is not None:
            used = self._used and self._prompt + self._used
            self._caller.charge_tokens(used - self._charged)
            self._caller = None


def charged_reply(caller: Caller, reply: Reply, ticket: Sequence[Cancellable]) -> Reply:
    """Wrap the reply to a request of tensors, which is charged for its tokens at its end.

    ticket: Has the request's ticket by then.

    Raises Overloaded if the quota is exhausted.
    """
    caller.charge_tokens(0)

    def replied(outputs: Outputs | None, error: CohortError | None) -> None:
        if ticket and isinstance(ticket[0], TokenTicket):
            caller.charge_tokens(ticket[0].tokens, whole=False)
        reply(outputs, error)

    return replied
