"""One request to a language model, from its body to the last piece of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from cohort.codec.codec_thread import decoding
from cohort.errors import CohortError
from cohort.generation import GenerationRequest, Piece, PreparedGeneration, Usage
from cohort.serving.answer_times import AnswerTimes
from cohort.serving.lease import Lease
from cohort.serving.prompts import PreparedPrompts, prompts_of
from cohort.serving.request import A, A_co, B, Call, Exchange
from cohort.serving.token_charge import TokenCharge


class TextCall(Protocol[A_co]):
    """A parsed request to a language model, of one API, which also writes its answer.

    model, version, label, timeout, parameters: As in `Call`.
    size: The characters of the prompt, roughly.
    """

    model: str | None
    version: str | None
    label: str | None
    timeout: float | None
    size: int

    @property
    def parameters(self) -> Mapping[str, object]: ...

    def request(self, lease: Lease) -> GenerationRequest:
        """Return the request, with the model's defaults; on any thread. Raises InvalidInput."""

    def begin(self, lease: Lease, prepared: PreparedGeneration) -> A_co | None:
        """Return the first part of the answer, once the request is queued; None: no part."""

    def encode_pieces(self, lease: Lease, pieces: Sequence[Piece]) -> A_co | None:
        """Return a part of the answer; None: no part, because the answer is sent at the end."""

    def encode_end(self, lease: Lease, usage: Usage) -> A_co | None:
        """Return the last part, or the whole answer; None: no part."""


class Generation(Exchange[A]):
    """A request to a language model and its answer. Implements `GenerationReply`.

    All methods are called on the event loop.
    """

    _times: AnswerTimes
    _prepared: PreparedGeneration | None = None  # None before it is queued
    _charge: TokenCharge | None = None

    def leave(self, error: CohortError | None = None) -> None:
        """See `Exchange`."""
        self._cut()
        super().leave(error)

    def fail(self, error: Exception) -> None:
        """See `Exchange`."""
        self._cut()
        super().fail(error)

    def _cut(self) -> None:
        """Stop counting, and note the end of a run that had made tokens."""
        if self.left:
            return
        self._stop_counting()
        if self.lease is not None and self._prepared is not None and self._times.first is not None:
            self.plane.observer.ran(self.context, self.lease)

    def _stop_counting(self) -> None:
        """Settle the charge, and describe the answer so far in the span."""
        if self._charge is not None:
            self._charge.settle()
        span, lease, prepared = self.context.span, self.lease, self._prepared
        if span is not None and lease is not None and prepared is not None:
            span.set(self._times.attributes(lease.model, prepared))

    def read_text(
        self,
        read: Callable[[B], TextCall[A]],
        sent: B,
        *,
        model: str | None,
        version: str | None = None,
        long: bool = False,
    ) -> None:
        """Make a call of the request, and continue with it; see `read`."""
        make = cast("Callable[[B], Call[A]]", read)
        self.read(make, sent, model=model, version=version, long=long)

    @property
    def _text_call(self) -> TextCall[A]:
        return cast("TextCall[A]", self._call)

    def _decode(self, lease: Lease) -> None:
        """Prepare the request on a thread: templates and tokenizers may take long."""
        lease.text  # noqa: B018 - raises for other models
        lease.check_room()
        stage = decoding(self._text_call.size)
        self._run_in(stage, self._prepare, lease, then=partial(self._generate, lease))

    def _prepare(self, lease: Lease) -> PreparedGeneration:
        request, prepare = self._text_call.request(lease), lease.text.prepare
        if not request.other_prompts:
            return prepare(request)
        each = []
        for prompt in (request.prompt, *request.other_prompts):
            lease.check_time(self._time_left())
            each.append(prepare(replace(request, prompt=prompt, other_prompts=())))
        return PreparedPrompts(request, each)

    def _generate(self, lease: Lease, prepared: PreparedGeneration) -> None:
        self.plane.observer.queued(self.context, lease.served)
        self._times = AnswerTimes(lease.served.counts.tokens_of(lease.variant))
        caller = self.context.caller
        if caller is not None and caller.tokens_per_minute is not None:
            self._charge = TokenCharge(caller, prompts_of(prepared))
        self._prepared = prepared
        lease.generate(prepared, self, timeout=self._time_left())
        self._send(self._text_call.begin(lease, prepared))

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """See `GenerationReply`."""
        if self.left or self.lease is None:
            return
        self._times.pieces(pieces, self.lease.seconds)
        if self._charge is not None:
            self._charge.pieces(pieces)
        try:
            self._send(self._text_call.encode_pieces(self.lease, pieces))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.lease.leave()
            self.fail(failure)

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        """See `GenerationReply`."""
        if self.left or self.lease is None:
            return
        if error is not None:
            self.fail(error)
            return
        self._times.completed()
        self._stop_counting()
        self.plane.observer.ran(self.context, self.lease)
        try:
            self._send(self._text_call.encode_end(self.lease, usage))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the caller gets a response
            super().fail(failure)
            return
        self.lease.close()
        self.reply.end(None)
        self.left = True

    def _send(self, part: A | None) -> None:
        if part is not None:
            self.reply.part(part)
