"""The times of the tokens of one streamed answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from cohort.generation import Conversation, Piece, PreparedGeneration
from cohort.metrics import TokenTimes


class AnswerTimes:
    """Observes when each choice of an answer gets its tokens.

    times: Receives the observations.
    first: Seconds from the request's arrival to its first token; None before it.
    tokens: The number of tokens so far, of all choices.
    finishes: Why choices ended, by choice.
    """

    __slots__ = ("_before", "_begun", "_times", "_tokens", "finishes", "first", "tokens")

    def __init__(self, times: TokenTimes) -> None:
        self._times = times
        self._begun: dict[int, float] = {}  # by choice, when it got its first token
        self._before: dict[int, float] = {}  # its latest
        self._tokens: dict[int, int] = {}  # tokens after those of its first piece
        self.first: float | None = None
        self.tokens = 0
        self.finishes: dict[int, str] = {}

    def pieces(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Observe new pieces, `seconds` after the request's arrival."""
        now = monotonic()
        for piece in pieces:
            if piece.finish:
                self.finishes[piece.choice] = piece.finish
            if not piece.tokens:
                continue
            self.tokens += len(piece.tokens)
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

    def attributes(self, model: str, prepared: PreparedGeneration) -> Mapping[str, Any]:
        """Return OpenTelemetry's attributes of a span, also for an answer that was cut.

        https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
        """
        chats = isinstance(prepared.request.prompt, Conversation)
        found: dict[str, Any] = {
            "gen_ai.operation.name": "chat" if chats else "text_completion",
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": len(prepared.prompt),
            "gen_ai.usage.output_tokens": self.tokens,
        }
        if self.finishes:
            found["gen_ai.response.finish_reasons"] = [
                self.finishes[choice] for choice in sorted(self.finishes)
            ]
        if self.first is not None:
            found["cohort.first_token.seconds"] = self.first
        return found
