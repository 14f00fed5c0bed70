"""A language model without a model: it repeats the prompt, word by word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from cohort.batching import Outputs, Reply, RunResult
from cohort.errors import CohortError, InvalidInput, NotReady
from cohort.generation import (
    Finish,
    GenerationReply,
    GenerationRequest,
    Piece,
    PreparedGeneration,
    Sampling,
    TextInputs,
    TokenLogprob,
    ToolCall,
    ToolReader,
    Usage,
)
from cohort.registry import (
    Cancellable,
    EngineDescription,
    LeaseCount,
    NotedTicket,
    RequestNotes,
    RequestQueue,
    Site,
    Source,
    TextDescription,
)
from cohort.repository import Published
from cohort.session import AssignedNode, CancellationToken, Metadata, Placement, Signature
from cohort.tensors import Arrays, TensorSpec

SIGNATURE = Signature(
    [TensorSpec("text_input", "BYTES", (None,))], [TensorSpec("text_output", "BYTES", (None,))], ()
)


class Calls:
    """Reads ` call:NAME` as a call without arguments. Implements `ToolReader`."""

    def add(self, text: str) -> Sequence[str | ToolCall]:
        word = text.strip()
        called = word.startswith("call:")
        return [ToolCall(word.removeprefix("call:"), "{}") if called else text]

    def rest(self) -> Sequence[str | ToolCall]:
        return ()


@dataclass(frozen=True, slots=True)
class Heard:
    """A prepared request. Implements `PreparedGeneration`."""

    request: GenerationRequest
    text: str
    prompt: Sequence[int]
    max_tokens: int


class Saying:
    """An answer in progress: one word in each iteration of the event loop.

    after: The words after which it waits for `resume`; None: it does not wait.
    """

    times = None
    remembered = False

    def __init__(
        self, prepared: PreparedGeneration, reply: GenerationReply, after: int | None = None
    ) -> None:
        self._after = after
        self._words = prepared.text.split()[: prepared.max_tokens]
        self._choices = prepared.request.choices
        self._prepared, self._reply = prepared, reply
        self.request = prepared.request
        self._said = 0
        self.cancelled = False
        self._next = asyncio.get_running_loop().call_soon(self._say)

    def _say(self) -> None:
        last = self._said + 1 >= len(self._words)
        word = self._words[self._said] if self._words else ""
        text = f" {word}" if self._said else word
        finish: Finish = "stop" if last else ""
        likely: Sequence[TokenLogprob] = ()
        if (count := self._prepared.request.logprobs) is not None:
            one = TokenLogprob(self._said, text, text.encode(), -0.5)
            likely = [one._replace(top=[one] * count)]
        pieces = [Piece(n, text, (self._said,), likely, finish) for n in range(self._choices)]
        self._said += 1
        self._reply.pieces(pieces)
        if self.cancelled or self._said == self._after:
            return
        if last:
            count = self._said * self._choices
            self._reply.ended(Usage(len(self._prepared.prompt), count), None)
        else:
            self._next = asyncio.get_running_loop().call_soon(self._say)

    def resume(self) -> None:
        self._next = asyncio.get_running_loop().call_soon(self._say)

    def fail(self, error: CohortError) -> None:
        self.cancel()
        self._reply.ended(Usage(len(self._prepared.prompt), self._said), error)

    def cancel(self) -> None:
        self.cancelled = True
        self._next.cancel()

    def when_over(self, then: object) -> bool:
        return False


class Parrot:
    """Implements `BatchEngine` and `TextEngine`.

    pauses_after: The words after which each answer waits; None: it does not wait.
    """

    pauses_after: int | None = None

    labels: Sequence[str] = ()
    optional_inputs: Sequence[TensorSpec] = ()
    inline_rows = 1
    waiting = 0
    timeout = 30.0
    example: Arrays | None = None
    example_outputs: Outputs | None = None
    inputs, outputs = SIGNATURE.inputs, SIGNATURE.outputs
    context_length = 64
    end_tokens = (2,)
    chats = True
    sampling = Sampling()

    def __init__(self) -> None:
        self.leases = LeaseCount()
        self.closed = False
        self.said: list[Saying] = []
        self.variants: list[str] = []

    @property
    def by_tensors(self) -> Self:
        return self

    def read_tools(self) -> ToolReader | None:
        return Calls()

    def prepare(self, request: GenerationRequest) -> Heard:
        prompt = request.prompt
        if isinstance(prompt, tuple):
            text = " ".join(map(str, prompt))
        else:
            text = prompt if isinstance(prompt, str) else str(prompt.messages[-1]["content"])
        words = text.split()
        if len(words) >= self.context_length:
            raise InvalidInput(
                f"this model's maximum context length is {self.context_length} tokens; the prompt "
                f"has {len(words)}",
                "prompt",
                "context_length_exceeded",
            )
        if (request.max_tokens or 0) > self.context_length:
            raise InvalidInput("max_tokens is larger than the context", "max_tokens")
        most = self.context_length if request.max_tokens is None else request.max_tokens
        return Heard(request, text, range(len(words)), most)

    def generate(
        self,
        prepared: PreparedGeneration,
        reply: GenerationReply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        priority: int = 0,
        caller: str = "",
        variant: str = "",
    ) -> Saying:
        if self.closed:
            raise NotReady("this version is being unloaded")
        self.variants.append(variant)
        self.said.append(Saying(prepared, reply, self.pauses_after))
        return self.said[-1]

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
        variant: str = "",
    ) -> Cancellable:
        text = str(inputs["text_input"][0])
        request = inputs.requests[0] if isinstance(inputs, TextInputs) else GenerationRequest(text)
        heard = self.prepare(request)

        class Whole:
            def __init__(self) -> None:
                self.texts = [""] * request.choices

            def pieces(self, pieces: Sequence[Piece]) -> None:
                for piece in pieces:
                    self.texts[piece.choice] += piece.text

            def ended(self, usage: Usage, error: object) -> None:
                reply([np.array(self.texts, object)], None)

        return self.generate(heard, Whole(), variant=variant)

    def submit_with(
        self,
        notes: RequestNotes,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        priority: int = 0,
    ) -> NotedTicket:
        if notes.charge is not None:
            notes.charge([self.prepare(GenerationRequest(str(inputs["text_input"][0])))])
        saying = self.submit(inputs, reply, variant=notes.variant)
        assert isinstance(saying, Saying)
        return saying

    def room_for(self, priority: int) -> int:
        return 8

    def check_room(self, priority: int) -> None:
        """There is always room."""

    def run_now(self, inputs: Arrays, arrived: float, rows: int, requests: int) -> RunResult | None:
        return None

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        return self

    def describe(self) -> EngineDescription:
        return EngineDescription(
            Metadata(),
            Placement(("cpu",), "cpu", (), {}),
            "cpu",
            text=TextDescription(self.context_length, self.chats),
        )

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        return ()

    def close(self) -> None:
        self.closed = True


class OpenedParrot:
    """Implements `OpenedVersion`."""

    published = Published()
    properties: Mapping[str, str] = {}
    signature = SIGNATURE

    def start(self, site: Site) -> Parrot:
        return Parrot()

    def close(self) -> None:
        """Nothing is open."""


class Parrots:
    """Opens folders with a genai_config.json. Implements `EngineFactory`."""

    file = "genai_config.json"

    def open(self, source: Source, token: CancellationToken) -> OpenedParrot:
        return OpenedParrot()

    def check_engines(self) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...
