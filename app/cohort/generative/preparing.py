"""Requests to a language model before they are queued: their tokens and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.errors import InvalidInput
from cohort.generation import Conversation, GenerationRequest
from cohort.generative.guidance import compile_guide
from cohort.generative.prefixes import name_blocks
from cohort.generative.sequence import Prepared
from cohort.generative.vocabulary import Vocabulary

MAX_CHOICES = 128
"""Maximum answers of one request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request.

    context: The maximum tokens of a prompt and its answer.
    budget: The maximum tokens of the cache.
    block: The tokens of a block of prompts that is kept.
    """

    context: int
    budget: int
    block: int

    @property
    def tokens(self) -> int:
        """The maximum tokens of a prompt and its answer that a request may ask for."""
        return min(self.context, self.budget)


def prepare(request: GenerationRequest, vocabulary: Vocabulary, limits: Limits) -> Prepared:
    """Tokenize a request's prompt and check its limits, on any thread. Raises InvalidInput."""
    prompt = request.prompt
    if not 1 <= request.choices <= MAX_CHOICES:
        raise InvalidInput(f"n must be from 1 to {MAX_CHOICES}, got {request.choices}", "n")
    field = "messages" if isinstance(prompt, Conversation) else "prompt"
    if isinstance(prompt, tuple):
        tokens: Sequence[int] = prompt
        wrong = next((one for one in tokens if not 0 <= one < vocabulary.size), None)
        if wrong is not None:
            raise InvalidInput(f"token {wrong} is not from 0 to {vocabulary.size - 1}", field)
        text = vocabulary.text_of(tokens[: limits.context])
    elif isinstance(prompt, str):
        text, tokens = prompt, vocabulary.encode(prompt)
    elif vocabulary.template is None:
        raise InvalidInput("the model has no chat template; send a prompt instead", field)
    else:
        text = vocabulary.template.render(prompt)
        tokens = vocabulary.encode(text, rendered=True)
    most = _max_tokens(request, len(tokens), limits, field)
    guide = None if request.guide is None else compile_guide(request.guide, vocabulary)
    return Prepared(request, text, tokens, most, name_blocks(tokens, limits.block), guide)


def _max_tokens(request: GenerationRequest, count: int, limits: Limits, field: str) -> int:
    if not count:
        raise InvalidInput("the prompt has no tokens", field)
    why = "the model's context" if limits.context <= limits.budget else "the server's cache"
    left = limits.tokens - count
    if left < 1:
        raise InvalidInput(
            f"the prompt has {count} tokens; with at least one of the answer, {why} holds "
            f"{limits.tokens}",
            field,
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
