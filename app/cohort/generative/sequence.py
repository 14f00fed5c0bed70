"""Requests to a language model, and their choices as sequences of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from cohort.batching import Times
from cohort.generation import (
    Finish,
    GenerationReply,
    GenerationRequest,
    Piece,
    TokenLogprob,
    Usage,
)
from cohort.generative.answer_text import begin_answer
from cohort.generative.guidance import CompiledGuide
from cohort.generative.sampling import Chooser, Chosen
from cohort.generative.vocabulary import Vocabulary
from cohort.tensors import Array


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose prompt was tokenized. Implements `PreparedGeneration`.

    blocks: The names of the prompt's blocks; see `prefixes`.
    body: The tokens in these blocks.
    guide: The compiled form of the answer; None: any text.
    """

    request: GenerationRequest
    text: str
    prompt: Sequence[int]
    max_tokens: int
    blocks: Sequence[bytes] = ()
    body: int = 0
    guide: CompiledGuide | None = None


class TextTicket:
    """A request with its choices. Implements `Cancellable`; used on the event loop.

    prepared: The request.
    reply: Receives the answer; None after its end or cancellation.
    arrived: The time of its arrival, in seconds on the monotonic clock.
    timeout: Its time limit in seconds, for messages.
    priority: Its priority.
    caller: The name of its caller.
    variant: The rollout's variant that it is for, for metrics.
    counted: True if metrics count it.
    on_cancel: Called with it if it is cancelled.

    entered: When it first entered the cache, in seconds on the monotonic clock; 0.0 before.
    cached: The tokens of its prompt that another request had computed.
    logits: The logits behind its prompt, FP32 [vocabulary], while a choice still has to begin.
    """

    def __init__(
        self,
        prepared: Prepared,
        reply: GenerationReply,
        *,
        timeout: float,
        priority: int = 0,
        caller: str = "",
        variant: str = "",
        counted: bool = True,
        on_cancel: Callable[[TextTicket], None],
        on_over: Callable[[Callable[[], None]], bool],
    ) -> None:
        self.prepared = prepared
        self.reply: GenerationReply | None = reply
        self.arrived, self.timeout = monotonic(), timeout
        self.priority, self.caller = priority, caller
        self.variant, self.counted = variant, counted
        self._on_cancel, self._on_over = on_cancel, on_over
        self.entered = 0.0
        self.answered = self.cached = 0
        self.open_choices = prepared.request.choices
        self.logits: Array | None = None

    @property
    def over(self) -> bool:
        """True after its end or cancellation."""
        return self.reply is None

    @property
    def times(self) -> Times | None:
        """The seconds until it entered the cache, and those since; None before."""
        if not self.entered:
            return None
        return self.entered - self.arrived, monotonic() - self.entered, None

    @property
    def usage(self) -> Usage:
        """Its tokens so far."""
        return Usage(len(self.prepared.prompt), self.answered, self.cached)

    def cancel(self) -> None:
        """See `Cancellable`."""
        if self.reply is not None:
            self.reply = None
            self._on_cancel(self)

    def when_over(self, then: Callable[[], None]) -> bool:
        """See `Cancellable`."""
        return self._on_over(then)


class ChoiceSequence:
    """One choice of a request: its tokens, and their place in the cache. Is a `Planned`.

    During a run, only the run's thread changes it.

    ticket: Its request.
    number: The number of the choice, from 0.
    tokens: Its tokens: the prompt, and the answer so far.
    cached: The tokens in the cache, from the first.
    slot: Its place in the cache; -1: it does not have one.
    reserved: The tokens of the cache that it may use.
    since: When it began to wait, in seconds on the monotonic clock.
    last: The time of its last token; 0.0: there is no token yet.
    finish: Why it ended; "" before.
    """

    def __init__(self, ticket: TextTicket, number: int, vocabulary: Vocabulary) -> None:
        prepared, self._vocabulary = ticket.prepared, vocabulary
        request = prepared.request
        self.ticket, self.number = ticket, number
        self.tokens = list(prepared.prompt)
        self.prompt, self.body = len(self.tokens), prepared.body
        self.limit = self.prompt + prepared.max_tokens
        self.caller, self.priority, self.arrived = ticket.caller, ticket.priority, ticket.arrived
        self.cached = self.reserved = 0
        self.slot = -1
        self.since, self.last = ticket.arrived, 0.0
        self.finish: Finish = ""
        self.preempted = False
        self.chooser = Chooser(
            request.sampling,
            prepared.prompt,
            choice=number,
            logprobs=request.logprobs,
            guide=None if prepared.guide is None else prepared.guide.start(),
        )
        self._ends = frozenset() if request.ignore_end else vocabulary.end_tokens
        self._text = begin_answer(vocabulary, request, prepared.prompt)

    @property
    def total(self) -> int:
        """The number of its tokens."""
        return len(self.tokens)

    @property
    def decodes(self) -> bool:
        """True if its prompt is in the cache, so that its next token can be computed."""
        return self.cached >= self.prompt

    def add(self, chosen: Chosen) -> Piece:
        """Add a token to the answer, and return its text."""
        token, answer, chooser = chosen.token, self._text, self.chooser
        self.tokens.append(token)
        if token in self._ends:
            text, self.finish = answer.rest(), "stop"
        else:
            text = answer.add(token)
            if answer.stopped or (chooser.guide is not None and chooser.ended):
                text, self.finish = text + answer.rest(), "stop"
            elif len(self.tokens) >= self.limit:
                text, self.finish = text + answer.rest(), "length"
        logprobs = () if chooser.logprobs is None else (self._logprob(chosen),)
        return Piece(self.number, text, (token,), logprobs, self.finish)

    def _logprob(self, chosen: Chosen) -> TokenLogprob:
        top = [self._token(token, logprob) for token, logprob in chosen.top]
        return self._token(chosen.token, chosen.logprob)._replace(top=top)

    def _token(self, token: int, logprob: float) -> TokenLogprob:
        raw = self._vocabulary.bytes_of(token)
        return TokenLogprob(token, raw.decode(errors="replace"), raw, logprob)
