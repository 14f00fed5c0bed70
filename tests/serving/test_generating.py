"""Requests to language models: one flow from the body to the last piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cohort.errors import CohortError, InvalidInput
from cohort.generation import GenerationRequest, Piece, Usage
from cohort.metrics import Metrics
from cohort.observability.tracing import RequestSpan
from cohort.observability.tracing.batches import BatchSpans
from cohort.serving.traced import TracedCounts
from tests.aviary import Aviary, open_aviary
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.parrot_callers import ask
from tests.planes import make_data_plane
from tests.waiting import iterations


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    async with open_aviary(tmp_path) as aviary:
        yield aviary


async def test_an_answer_comes_in_parts_and_ends_once(aviary: Aviary) -> None:
    """A call receives the prepared prompt, then each piece, then the number of tokens."""
    _, heard = ask(aviary, "one two three")
    await heard.over.wait()
    assert heard.parts == ["[3]", "one", " two", " three", "[3]"]
    assert heard.error is None
    assert aviary.parrot.leases.count == 0


async def test_a_caller_who_leaves_gets_nothing_more(aviary: Aviary) -> None:
    """`leave` cancels the engine's work and releases the version."""
    _, heard = ask(aviary, "a " * 60, leave_after=4)
    await heard.over.wait()
    assert aviary.parrot.said[0].cancelled
    assert aviary.parrot.leases.count == 0
    await iterations(3)
    assert len(heard.parts) == 4


class Silent:
    """Ignores an answer. Implements `GenerationReply`."""

    def pieces(self, pieces: Sequence[Piece]) -> None: ...

    def ended(self, usage: Usage, error: CohortError | None) -> None: ...


async def test_the_engine_gets_the_variant(aviary: Aviary) -> None:
    """Its metrics have the rollout's variant, for texts and for tensors."""
    lease = aviary.plane.pick("m")
    lease.variant = "canary"
    lease.generate(lease.text.prepare(GenerationRequest("one")), Silent())
    lease.submit({"text_input": np.array(["one"], object)}, lambda outputs, error: None)
    assert aviary.parrot.variants == ["canary", "canary"]
    await iterations(3)
    lease.close()


async def test_a_refused_prompt_is_an_error_without_parts(aviary: Aviary) -> None:
    """The error names the field of the request."""
    _, heard = ask(aviary, "a " * 64)
    await heard.over.wait()
    assert heard.parts == []
    assert isinstance(heard.error, InvalidInput)
    assert heard.error.parameter == "prompt"


@pytest.mark.parametrize("leave_after", [0, 3])
async def test_a_span_has_the_tokens_of_an_answer(aviary: Aviary, leave_after: int) -> None:
    """They are OpenTelemetry's attributes; a caller that leaves has those so far, and the run."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    root = tracer.start_span("request")
    batches = BatchSpans(tracer)
    span = RequestSpan(batches, root, batches.under(root))
    aviary.plane.observer = TracedCounts(aviary.metrics)
    _, heard = ask(aviary, "one two three", leave_after=leave_after, span=span)
    await heard.over.wait()
    span.end()
    spans = exporter.get_finished_spans()
    assert sorted(one.name for one in spans) == ["decode", "encode", "request", "run"]
    (found,) = [dict(one.attributes or {}) for one in spans if one.name == "request"]
    assert found["gen_ai.request.model"] == "m"
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.usage.input_tokens"] == 3
    assert found["gen_ai.usage.output_tokens"] == (2 if leave_after else 3)
    assert found.get("gen_ai.response.finish_reasons") == (None if leave_after else ("stop",))
    assert float(str(found["cohort.first_token.seconds"])) > 0


def test_an_engine_of_tensors_has_no_text() -> None:
    """A lease on another kind of model refuses requests for text, with the model's name."""
    registry = make_registry({"m": [make_entry(engine=ControlledEngine())]})
    plane = make_data_plane(registry, Metrics())
    with (
        plane.pick("m") as lease,
        pytest.raises(InvalidInput, match=r"m.* is not a language model"),
    ):
        lease.text  # noqa: B018 - raises
