"""The tokens of a request to a language model, charged to its caller's quota."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.auth import Caller
from cohort.generation import Piece, PreparedGeneration


class TokenCharge:
    """Charges a request for all tokens that it may use, and gives the unused ones back.

    Implements `TokenUse`.

    caller: Has a quota of tokens.
    prompts: The prompts of the request.

    Raises Overloaded if the quota is exhausted.
    """

    def __init__(self, caller: Caller, prompts: Sequence[PreparedGeneration]) -> None:
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
        """Give back what was not used; a request without any token costs nothing."""
        caller, self._caller = self._caller, None
        if caller is not None:
            used = self._used and self._prompt + self._used
            caller.charge_tokens(used - self._charged)
