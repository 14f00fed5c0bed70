"""The engine of a language model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np

from cohort.batching import Outputs, Reply, RunResult
from cohort.codec.sampling_parameters import read_generation
from cohort.errors import Overloaded
from cohort.generation import (
    GenerationReply,
    GenerationRequest,
    PreparedGeneration,
    Sampling,
    TextInputs,
    ToolReader,
)
from cohort.generative.config import DecoderConfig
from cohort.generative.generation_queue import GenerationQueue
from cohort.generative.preparing import Limits, prepare
from cohort.generative.sequence import Prepared, TextTicket
from cohort.generative.text_rows import SideQueue, TextRows
from cohort.generative.tool_calls import make_tool_reader
from cohort.generative.vocabulary import Vocabulary
from cohort.registry import (
    EngineDescription,
    LeaseCount,
    RequestNotes,
    RequestQueue,
    RunNow,
    TokenUse,
)
from cohort.session import AssignedNode, Session, Signature
from cohort.tensors import Arrays, TensorSpec

SIGNATURE = Signature(
    [TensorSpec("text_input", "BYTES", (None,))], [TensorSpec("text_output", "BYTES", (None,))], ()
)
"""The inputs and outputs of a language model for requests of tensors."""

SHADOW_PRIORITY = -1
"""The priority of copied requests: below that of callers."""


class GenerativeEngine:
    """An engine of a language model. Implements `BatchEngine`, `NotedEngine` and `TextEngine`.

    session: The open decoder, for descriptions.
    config: Its description.
    vocabulary: Its tokens.
    limits: The limits of requests.
    queue: Its requests; closed with the engine.
    description: Returns the engine's description.
    timeout: The maximum time of a request, in seconds.
    example: A prompt to show to callers.
    """

    labels: Sequence[str] = ()
    optional_inputs: Sequence[TensorSpec] = ()
    inline_rows = 1
    example_outputs: Outputs | None = None
    inputs, outputs = SIGNATURE.inputs, SIGNATURE.outputs

    def __init__(
        self,
        session: Session,
        config: DecoderConfig,
        vocabulary: Vocabulary,
        limits: Limits,
        queue: GenerationQueue,
        *,
        description: Callable[[], EngineDescription],
        timeout: float,
        example: str,
    ) -> None:
        self._session, self._config, self._vocabulary = session, config, vocabulary
        self._limits, self._queue, self._description = limits, queue, description
        self.timeout = timeout
        self.leases = LeaseCount()
        self.example: Arrays | None = {"text_input": np.array([example], np.object_)}

    # -- TextEngine

    @property
    def context_length(self) -> int:
        """See `TextEngine`."""
        return self._limits.tokens

    @property
    def end_tokens(self) -> Collection[int]:
        """See `TextEngine`."""
        return self._vocabulary.end_tokens

    @property
    def chats(self) -> bool:
        """See `TextEngine`."""
        return self._vocabulary.template is not None

    @property
    def sampling(self) -> Sampling:
        """See `TextEngine`."""
        return self._config.sampling

    def read_tools(self) -> ToolReader | None:
        """See `TextEngine`."""
        return make_tool_reader(self._vocabulary.template)

    def prepare(self, request: GenerationRequest) -> Prepared:
        """See `TextEngine`."""
        return prepare(request, self._vocabulary, self._limits)

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
    ) -> TextTicket:
        """See `TextEngine`."""
        if not isinstance(prepared, Prepared):  # by another version
            prepared = self.prepare(prepared.request)
        return self._queue.submit(
            prepared,
            reply,
            deadline=deadline,
            timeout=timeout,
            priority=priority,
            caller=caller,
            variant=variant,
        )

    # -- BatchEngine

    @property
    def by_tensors(self) -> Self:
        """This engine itself: its requests may be tensors."""
        return self

    @property
    def waiting(self) -> int:
        """The number of choices that wait for a place in the cache."""
        return self._queue.waiting

    @property
    def run_now(self) -> RunNow:
        """Runs nothing; see `inline_rows`."""
        return _not_now

    def room_for(self, priority: int) -> int:
        """See `BatchEngine`."""
        return self._queue.room_for(priority)

    def check_room(self, priority: int) -> None:
        """See `BatchEngine`."""
        self._queue.check_room(priority)

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> TextRows:
        """See `BatchEngine`."""
        return self.submit_with(
            RequestNotes(), inputs, reply, deadline=deadline, timeout=timeout, priority=priority
        )

    def submit_with(
        self,
        notes: RequestNotes,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        priority: int = 0,
    ) -> TextRows:
        """See `NotedEngine`."""
        send = partial(
            self._queue.submit,
            deadline=deadline,
            timeout=timeout,
            priority=priority,
            caller=notes.caller,
            variant=notes.variant,
        )
        return self._submit_rows(inputs, reply, notes.parameters, send, priority, notes.charge)

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Return a queue of requests that metrics do not count; those of shadows go last."""
        return SideQueue(self._submit_aside, max_requests, SHADOW_PRIORITY if shadow else 0)

    def _submit_aside(
        self, inputs: Arrays, reply: Reply, deadline: float, timeout: float | None, priority: int
    ) -> TextRows:
        send = partial(
            self._queue.submit,
            deadline=deadline,
            timeout=timeout,
            priority=priority,
            counted=False,
        )
        if isinstance(inputs, TextInputs):
            requests = inputs.requests
            size = sum(len(str(text)) for text in inputs["text_input"].flat)
            choices = [request.choices for request in requests]
            return TextRows(
                lambda: [self.prepare(one) for one in requests], size, send, reply, choices=choices
            )
        return self._submit_rows(inputs, reply, {}, send, priority)

    def _submit_rows(
        self,
        inputs: Arrays,
        reply: Reply,
        parameters: Mapping[str, object],
        send: Callable[[Prepared, GenerationReply], TextTicket],
        priority: int,
        charge: Callable[[Sequence[PreparedGeneration]], TokenUse] | None = None,
    ) -> TextRows:
        texts = [str(text) for text in inputs["text_input"].ravel()]
        if len(texts) > self._queue.room_for(max(priority, 0)):
            raise Overloaded(f"{len(texts)} prompts exceed the model's queue (max_waiting)")

        def prepare_all() -> Sequence[Prepared]:
            asked = [read_generation(text, parameters, self.sampling) for text in texts]
            return [self.prepare(one) for one in asked]

        return TextRows(prepare_all, sum(map(len, texts)), send, reply, charge=charge)

    def describe(self) -> EngineDescription:
        """See `Engine`."""
        return self._description()

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """See `Engine`."""
        return self._session.assigned_nodes()

    def close(self) -> None:
        """See `Engine`."""
        self._queue.close()


def _not_now(inputs: Arrays, arrived: float, rows: int, requests: int, /) -> RunResult | None:
    del inputs, arrived, rows, requests
    return None
