"""Requests to language models: one flow from the body to the last piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cohort.connections.memory import MemoryBudget, MemoryHold
from cohort.errors import CohortError, InvalidInput
from cohort.generation import GenerationRequest, Piece, PreparedGeneration, Usage
from cohort.metrics import Metrics
from cohort.serving import Generation, Lease, RequestContext
from tests.aviary import Aviary, open_aviary
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.planes import make_data_plane
from tests.waiting import iterations, until


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
    """A reply that keeps the parts and the end."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.over = asyncio.Event()
        self.error: CohortError | None = None

    def part(self, answer: str) -> None:
        self.parts.append(answer)

    def end(self, error: CohortError | None) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()


def ask(aviary: Aviary, prompt: str) -> tuple[Generation[str], Heard]:
    """Send a request, and return it with its reply."""
    heard = Heard()
    hold = MemoryHold(MemoryBudget(1 << 20))
    exchange = Generation(aviary.plane, RequestContext(), heard, hold)
    exchange.read_text(Asked, prompt, model="m")
    return exchange, heard


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    """A plane over one parrot."""
    async with open_aviary(tmp_path) as opened:
        yield opened


async def test_an_answer_comes_in_parts_and_ends_once(aviary: Aviary) -> None:
    """A call receives the prepared prompt, then each piece, then the number of tokens."""
    _, heard = ask(aviary, "one two three")
    await heard.over.wait()
    assert heard.parts == ["[3]", "one", " two", " three", "[3]"]
    assert heard.error is None
    assert aviary.parrot.leases.count == 0


async def test_a_caller_who_leaves_gets_nothing_more(aviary: Aviary) -> None:
    """`leave` cancels the engine's work and releases the version."""
    exchange, heard = ask(aviary, "a " * 60)
    await until(lambda: len(heard.parts) > 3)
    exchange.leave()
    count = len(heard.parts)
    assert aviary.parrot.said[0].cancelled
    assert aviary.parrot.leases.count == 0
    await iterations(3)
    assert len(heard.parts) == count


async def test_a_refused_prompt_is_an_error_without_parts(aviary: Aviary) -> None:
    """The error names the field of the request."""
    _, heard = ask(aviary, "a " * 64)
    await heard.over.wait()
    assert heard.parts == []
    assert isinstance(heard.error, InvalidInput)
    assert heard.error.parameter == "prompt"


def test_an_engine_of_tensors_has_no_text() -> None:
    """A lease on another kind of model refuses requests for text, with the model's name."""
    registry = make_registry({"m": [make_entry(engine=ControlledEngine())]})
    plane = make_data_plane(registry, Metrics())
    with (
        plane.pick("m") as lease,
        pytest.raises(InvalidInput, match=r"m.* is not a language model"),
    ):
        lease.text  # noqa: B018 - raises
