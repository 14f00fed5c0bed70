"""Requests to a language model before they are queued: their tokens and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cohort.errors import InvalidInput, quoted
from cohort.generation import Conversation, GenerationRequest
from cohort.generative.answer_text import check_stop
from cohort.generative.guidance import compile_guide
from cohort.generative.prefixes import name_blocks
from cohort.generative.sampling import check_sampling
from cohort.generative.sequence import Prepared
from cohort.generative.special_texts import new_key
from cohort.generative.vocabulary import Vocabulary

MAX_CHOICES = 128
"""Maximum answers of one request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request.

    context: The maximum tokens of a prompt and its answer.
    budget: The maximum tokens of the cache.
    unit: The tokens of the smallest part of a prompt.
    block: The tokens of a block of prompts that is kept.
    vocabulary: The number of tokens that the decoder knows.
    """

    context: int
    budget: int
    unit: int
    block: int
    vocabulary: int

    @property
    def tokens(self) -> int:
        """The maximum tokens of a prompt and its answer that a request may ask for."""
        return min(self.context, self.budget)


def prepare(request: GenerationRequest, vocabulary: Vocabulary, limits: Limits) -> Prepared:
    """Tokenize a request's prompt and check its limits, on any thread. Raises InvalidInput."""
    if not 1 <= request.choices <= MAX_CHOICES:
        raise InvalidInput(f"n must be from 1 to {MAX_CHOICES}, got {request.choices}", "n")
    check_sampling(request.sampling, vocabulary.size, request.logprobs)
    check_stop(request.stop)
    field = "messages" if isinstance(request.prompt, Conversation) else "prompt"
    text, tokens = _tokenize(request, vocabulary, limits.vocabulary, field)
    most = _max_tokens(request, len(tokens), limits, field)
    guide = None if request.guide is None else compile_guide(request.guide, vocabulary)
    blocks = name_blocks(tokens, limits.block)
    body = max(len(tokens) - 2, 0) // limits.unit * limits.unit
    return Prepared(request, text, tokens, most, blocks, body, guide)


def _tokenize(
    request: GenerationRequest, vocabulary: Vocabulary, known: int, field: str
) -> tuple[str, Sequence[int]]:
    """Return the text and the tokens of a prompt; the decoder knows `known` tokens."""
    prompt = request.prompt
    if isinstance(prompt, tuple):
        _check_tokens(prompt, vocabulary, known, field)
        return vocabulary.text_of(prompt), prompt
    if isinstance(prompt, str):
        text, tokens = prompt, vocabulary.encode(prompt)
    elif vocabulary.template is None:
        raise InvalidInput("the model has no chat template; send a prompt instead", field)
    else:
        texts, key = vocabulary.special_texts, new_key()
        rendered = vocabulary.template.render(prompt, partial(texts.hide, key=key))
        text, places = texts.show(rendered, key)
        tokens = vocabulary.encode(text, rendered=True, plain=places)
    _check_tokens(tokens, vocabulary, known, field)
    return text, tokens


def _check_tokens(tokens: Sequence[int], vocabulary: Vocabulary, known: int, field: str) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < known):
        wrong = next(one for one in tokens if not 0 <= one < known)
        name = vocabulary.name_of(wrong)
        text = "" if name is None else f" ({quoted(name)})"
        raise InvalidInput(
            f"the prompt has the token {wrong}{text}; the model's tokens are from 0 to {known - 1}",
            field,
        )


def _max_tokens(request: GenerationRequest, count: int, limits: Limits, field: str) -> int:
    if not count:
        raise InvalidInput("the prompt has no tokens", field)
    why = "the model's context" if limits.context <= limits.budget else "the server's cache"
    left = limits.tokens - count
    if left < 1:
        raise InvalidInput(
            f"this model's maximum context length is {limits.tokens} tokens ({why}), with at "
            f"least one of the answer; the prompt has {count}",
            field,
            "context_length_exceeded",
        )
    most = request.max_tokens
    if most is None:
        return left
    if not 1 <= most <= left:
        raise InvalidInput(
            f"max_tokens must be from 1 to {left}: the prompt has {count} tokens, and {why} holds "
            f"{limits.tokens}; got {most}",
            "max_tokens",
        )
    return most
