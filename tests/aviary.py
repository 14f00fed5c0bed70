"""A data plane over a Parrot, and callers of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cohort.connections.memory import MemoryBudget, MemoryHold
from cohort.errors import CohortError
from cohort.generation import GenerationRequest, Piece, PreparedGeneration, Usage
from cohort.registry import Registry
from cohort.repository import scan
from cohort.serving import DataPlane, Generation, Lease, RequestContext
from tests.fakes import make_metrics
from tests.parrot import Parrot, Parrots
from tests.planes import make_data_plane


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


class Aviary:
    """A plane over one parrot, and its registry and metrics."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.metrics = registry, make_metrics()
        self.plane: DataPlane = make_data_plane(registry, self.metrics)

    @property
    def parrot(self) -> Parrot:
        engine = self.registry.catalog["m"].versions[1].engine
        assert isinstance(engine, Parrot)
        return engine

    def ask(self, prompt: str, *, leave_after: int = 0) -> tuple[Generation[str], Heard]:
        heard = Heard(leave_after)
        hold = MemoryHold(MemoryBudget(1 << 20))
        exchange = Generation(self.plane, RequestContext(), heard, hold)
        heard.exchange = exchange
        exchange.read_text(Asked, prompt, model="m")
        return exchange, heard


@asynccontextmanager
async def open_aviary(folder: Path) -> AsyncIterator[Aviary]:
    """Serve version 1 of model m."""
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / Parrots.file).write_text("{}")
    registry = Registry([Parrots()], observe=lambda event: None)
    registry.follow(await asyncio.to_thread(scan, folder, None, quiet=0, kinds=registry.kinds))
    await registry.loaded()
    yield Aviary(registry)
    registry.close()
