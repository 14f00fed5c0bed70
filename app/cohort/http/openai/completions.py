"""`/v1/completions`: from the body to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from cohort.connections.memory import MemoryHold
from cohort.errors import InvalidInput
from cohort.generation import GenerationRequest, Guide, Piece, PreparedGeneration, Usage
from cohort.http.event_stream import EventPart
from cohort.http.openai.answers import EventWriter, TextLogprobs, new_head, whole_answer
from cohort.http.openai.fields import (
    UNSUPPORTED,
    Fields,
    parse_object,
    wrong_type,
    wrong_value,
)
from cohort.http.openai.options import (
    IGNORED,
    MAX_LOGPROBS,
    REFUSED,
    Options,
    read_options,
)
from cohort.http.openai.tools import read_response_format
from cohort.serving import Lease, prompts_of

DEFAULT_MAX_TOKENS = 16
"""As in OpenAI's API."""

MAX_PROMPTS = 128
MAX_ANSWERS = 128
"""Limit of prompts times choices."""
MAX_TOKEN_ID = (1 << 31) - 1

CHATS: Mapping[str, str] = {"messages": "use 'prompt', or /v1/chat/completions"}

TEXT_REFUSED: Mapping[str, str] = {
    **REFUSED,
    **CHATS,
    "suffix": "text is continued at its end only",
    "tools": "use /v1/chat/completions",
    "top_logprobs": "use 'logprobs' with a number",
}

Prompts = tuple[str | tuple[int, ...], ...]


def read_completion(body: bytes, hold: MemoryHold) -> CompletionCall:
    """Read a body; `hold` counts the answer. Raises InvalidInput."""
    fields = Fields(parse_object(body))
    prompts = read_prompts(fields)
    options = read_options(fields, DEFAULT_MAX_TOKENS)
    if len(prompts) * options.choices > MAX_ANSWERS:
        raise wrong_value("n", f"and the prompts make more than {MAX_ANSWERS} answers")
    best_of = fields.get("best_of")
    if best_of not in (None, 1, options.choices) or best_of is True:
        message = "'best_of' is not supported: all answers are returned; use 'n'"
        raise InvalidInput(message, "best_of", UNSUPPORTED)
    echo, logprobs = fields.flag("echo"), fields.integer("logprobs", 0, MAX_LOGPROBS)
    if echo and logprobs is not None:
        raise InvalidInput(
            "'logprobs' of the prompt are not supported: leave out 'echo'", "echo", UNSUPPORTED
        )
    guide = read_response_format(fields)
    fields.check_rest(IGNORED, TEXT_REFUSED)
    return CompletionCall(options, prompts, guide, logprobs, len(body), hold, echo=echo)


def read_prompts(fields: Fields) -> Prompts:
    """Return the prompts: texts, or the ids of tokens. Raises InvalidInput."""
    fields.required("prompt", CHATS)
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    wanted = "a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(prompt, list):
        raise wrong_type("prompt", wanted, prompt)
    if not prompt:
        raise wrong_value("prompt", "must not be empty")
    if prompt[0].__class__ is int:
        return (_token_ids(prompt, "prompt"),)
    if len(prompt) > MAX_PROMPTS:
        raise wrong_value("prompt", f"has {len(prompt)} prompts, more than {MAX_PROMPTS}")
    found: list[str | tuple[int, ...]] = []
    for number, one in enumerate(prompt):
        if one.__class__ is not prompt[0].__class__ or not isinstance(one, str | list):
            raise wrong_type(f"prompt[{number}]", wanted, one)
        found.append(one if isinstance(one, str) else _token_ids(one, f"prompt[{number}]"))
    return tuple(found)


def _token_ids(values: list[Any], place: str) -> tuple[int, ...]:
    if not values:
        raise wrong_value(place, "must not be empty")
    if {*map(type, values)} != {int} or min(values) < 0 or max(values) > MAX_TOKEN_ID:
        raise wrong_value(place, "must have token ids only: integers from 0")
    return tuple(values)


class CompletionCall:
    """A request for the continuation of prompts. Implements `TextCall`.

    options: The options.
    prompts: The prompts, which share the options.
    guide: The form of the answer; None: any text.
    logprobs: The number of most likely tokens to report with each token; None: no logprobs.
    size: The bytes of the body.
    hold: The request's share of the memory; the answer is added to it.
    echo: True if the answer begins with the prompt.
    """

    version: str | None = None
    label: str | None = None

    def __init__(
        self,
        options: Options,
        prompts: Prompts,
        guide: Guide | None,
        logprobs: int | None,
        size: int,
        hold: MemoryHold,
        *,
        echo: bool,
    ) -> None:
        self.size = size
        self.model, self.timeout = options.model, options.timeout
        self.parameters = options.parameters
        self.stream = options.stream
        self.names: Mapping[str, str] = {"max_tokens": options.limit}
        self._options = options
        self._prompts = prompts
        self._guide = guide
        self._logprobs = logprobs
        self._hold = hold
        self._echo = echo
        self._head: dict[str, Any] = {}
        self._choices: list[_Text] = []
        self._writer: EventWriter | None = None

    def request(self, lease: Lease) -> GenerationRequest:
        """Return the request, with the model's defaults."""
        first, *others = self._prompts
        request = self._options.request(lease.text.sampling, first)
        return replace(
            request, guide=self._guide, logprobs=self._logprobs, other_prompts=tuple(others)
        )

    def begin(self, lease: Lease, prepared: PreparedGeneration) -> None:
        """Prepare the answer; its first part comes with the first token."""
        options = self._options
        self._head = new_head("cmpl-", "text_completion", lease)
        top = bool(self._logprobs)
        self._choices = [
            _Text(one.text if self._echo else "", TextLogprobs(top=top, offset=0))
            for one in prompts_of(prepared)
            for _ in range(options.choices)
        ]
        if options.stream:
            self._writer = EventWriter(self._head, usage=options.usage)

    def encode_pieces(self, lease: Lease, pieces: Sequence[Piece]) -> EventPart | None:
        """Return events, or keep the pieces for a whole answer."""
        if self._writer is not None:
            return self._writer.events(
                self._choices[piece.choice].part(piece)
                for piece in pieces
                if piece.text or piece.logprobs or piece.finish
            )
        for piece in pieces:
            self._hold.add(self._choices[piece.choice].keep(piece))
        return None

    def encode_end(self, lease: Lease, usage: Usage) -> EventPart:
        """Return the last events, or the whole answer."""
        if self._writer is not None:
            return self._writer.last(usage)
        choices = [one.whole(number) for number, one in enumerate(self._choices)]
        return whole_answer(self._head, choices, usage, lease)


class _Text:
    """One answer in progress; `before` is the text that it begins with."""

    def __init__(self, before: str, logprobs: TextLogprobs) -> None:
        self._before = before
        self._texts: list[str] = [before]
        self._logprobs = logprobs
        self._found: dict[str, list[orjson.Fragment]] = {}  # written at once: all may be long
        self._finish: str = ""

    def part(self, piece: Piece) -> dict[str, Any]:
        """Return a piece as a choice of an event."""
        text, self._before = self._before + piece.text, ""
        logprobs = self._logprobs.of(piece.logprobs) if piece.logprobs else None
        return _choice(piece.choice, text, logprobs, piece.finish or None)

    def keep(self, piece: Piece) -> int:
        """Keep a piece for the whole answer, and return its bytes, roughly."""
        self._texts.append(piece.text)
        self._finish = piece.finish or self._finish
        if not piece.logprobs:
            return len(piece.text)
        size = len(piece.text)
        for key, values in self._logprobs.of(piece.logprobs).items():
            written = orjson.dumps(values)[1:-1]
            size += len(written)
            self._found.setdefault(key, []).append(orjson.Fragment(written))
        return size

    def whole(self, index: int) -> dict[str, Any]:
        """Return the choice."""
        logprobs = self._found or None
        return _choice(index, "".join(self._texts), logprobs, self._finish)


def _choice(index: int, text: str, logprobs: object, finish: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}
