"""Callers of a parrot, without a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.auth import Caller
from cohort.connections.memory import MemoryBudget, MemoryHold
from cohort.errors import CohortError
from cohort.generation import GenerationRequest, Piece, PreparedGeneration, Usage
from cohort.observability.tracing import RequestSpan
from cohort.serving import Generation, Lease, RequestContext
from tests.aviary import Aviary


@dataclass
class Asked:
    """A call that writes each piece as its text."""

    prompt: str
    model: str | None = "m"
    version: str | None = None
    label: str | None = None
    timeout: float | None = None
    size: int = 0
    parameters: Mapping[str, object] = field(default_factory=dict)

    def request(self, lease: Lease) -> GenerationRequest:
        return GenerationRequest(self.prompt)

    def begin(self, lease: Lease, prepared: PreparedGeneration) -> str | None:
        return f"[{len(prepared.prompt)}]"

    def encode_pieces(self, lease: Lease, pieces: Sequence[Piece]) -> str | None:
        return "".join(piece.text for piece in pieces)

    def encode_end(self, lease: Lease, usage: Usage) -> str | None:
        return f"[{usage.answer}]"


class Heard:
    """A reply that keeps the parts and the end.

    leave_after: Leave after this number of parts; 0: never.
    """

    def __init__(self, leave_after: int = 0) -> None:
        self.leave_after = leave_after
        self.exchange: Generation[str] | None = None
        self.parts: list[str] = []
        self.over = asyncio.Event()
        self.error: CohortError | None = None

    def part(self, answer: str) -> None:
        self.parts.append(answer)
        if len(self.parts) == self.leave_after and self.exchange is not None:
            self.exchange.leave()
            self.over.set()

    def end(self, error: CohortError | None) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()


def ask(
    aviary: Aviary,
    prompt: str,
    *,
    leave_after: int = 0,
    caller: Caller | None = None,
    span: RequestSpan | None = None,
) -> tuple[Generation[str], Heard]:
    """Ask the parrot; leave after this number of parts, if it is not 0."""
    heard = Heard(leave_after)
    hold = MemoryHold(MemoryBudget(1 << 20))
    exchange = heard.exchange = Generation(
        aviary.plane, RequestContext(caller=caller, span=span), heard, hold
    )
    exchange.read_text(Asked, prompt, model="m")
    return exchange, heard
