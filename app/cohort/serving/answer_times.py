"""The times of the tokens of one streamed answer."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from cohort.generation import Piece
from cohort.metrics import TokenTimes


class AnswerTimes:
    """Observes when each choice of an answer gets its tokens.

    times: Receives the observations.
    first: Seconds from the request's arrival to its first token; None before it.
    """

    __slots__ = ("_before", "_begun", "_times", "_tokens", "first")

    def __init__(self, times: TokenTimes) -> None:
        self._times = times
        self._begun: dict[int, float] = {}  # by choice, when it got its first token
        self._before: dict[int, float] = {}  # its latest
        self._tokens: dict[int, int] = {}  # tokens after those of its first piece
        self.first: float | None = None

    def pieces(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Observe new pieces, `seconds` after the request's arrival."""
        now = monotonic()
        for piece in pieces:
            if not piece.tokens:
                continue
            choice = piece.choice
            if (before := self._before.get(choice)) is None:
                self._begun[choice] = now
                self._tokens[choice] = 0
            else:
                self._times.between.observe(now - before)
                self._tokens[choice] += len(piece.tokens)
            self._before[choice] = now
            if self.first is None:
                self.first = seconds
                self._times.first.observe(seconds)

    def completed(self) -> None:
        """Observe the mean time of a token, after each choice has ended."""
        for choice, tokens in self._tokens.items():
            if tokens:
                self._times.each.observe((self._before[choice] - self._begun[choice]) / tokens)
