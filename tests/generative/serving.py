"""Language models of tests: an engine on a real scheduler, and callers that keep their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cohort.errors import CohortError, ModelNotFound
from cohort.generation import GenerationRequest, Piece, Usage
from cohort.generative.engine import GenerativeEngine
from cohort.generative.events import GenerationEvent
from cohort.generative.factory import GenerativeEngines
from cohort.onnx_engine import VersionOpener
from cohort.registry import BatchEngine, Site, Source
from cohort.repository import GenerationPolicy, ModelConfig
from cohort.scheduling import Scheduler
from cohort.session import CancellationToken, SessionOptions
from tests.waiting import iterations

ONE_THREAD = SessionOptions(intra_op_threads=1)


class NoModels:
    """Implements `VersionDirectory`."""

    def lease(self, model: str, version: str | None = None) -> BatchEngine:
        raise ModelNotFound(model)


class Answer:
    """Receives an answer. Implements `GenerationReply`."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.text: dict[int, str] = {}
        self.finish: dict[int, str] = {}
        self.logprobs: list[float] = []
        self.done: asyncio.Future[tuple[Usage, CohortError | None]] = (
            asyncio.get_running_loop().create_future()
        )
        self.first = asyncio.Event()

    def pieces(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.tokens.setdefault(piece.choice, []).extend(piece.tokens)
            self.text[piece.choice] = self.text.get(piece.choice, "") + piece.text
            self.logprobs += [one.logprob for one in piece.logprobs]
            if piece.finish:
                self.finish[piece.choice] = piece.finish
        self.first.set()

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        self.done.set_result((usage, error))


class Served:
    """A served language model, and its events."""

    def __init__(self, engine: GenerativeEngine, events: list[GenerationEvent]) -> None:
        self.engine, self.events = engine, events

    def ask(self, request: GenerationRequest, **wanted: Any) -> tuple[Any, Answer]:
        """Submit a request; return its ticket and its answer."""
        answer = Answer()
        return self.engine.generate(self.engine.prepare(request), answer, **wanted), answer

    async def solo(self, request: GenerationRequest) -> Answer:
        """Return the whole answer to a request."""
        _, answer = self.ask(request)
        _, error = await answer.done
        assert error is None
        return answer


@asynccontextmanager
async def serving(
    folder: Path, policy: GenerationPolicy | None = None, *, file: str = "genai_config.json"
) -> AsyncIterator[Served]:
    """Serve the language model in a folder."""
    scheduler = Scheduler({"cpu": 2})
    events: list[GenerationEvent] = []
    factory = GenerativeEngines(
        wake=scheduler.wake, opener=VersionOpener(None), count=lambda *_: events.append
    )
    config = ModelConfig(session=ONE_THREAD, generation=policy or GenerationPolicy())
    opened = factory.open(Source(folder / file, "", config, model="m"), CancellationToken())
    engine = opened.start(Site("m", 1, lambda event: None, NoModels()))
    assert isinstance(engine, GenerativeEngine)
    try:
        yield Served(engine, events)
    finally:
        engine.close()
        await iterations(1)
        scheduler.close()
