"""Prompts of a language model with its answers, in a manifest or in `example:` of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from cohort.errors import LoadFailed
from cohort.repository.manifest.tensors import explain_invalid
from cohort.repository.schema import unknown_key

MAX_TEXTS = 16
"""Maximum number of texts in a manifest: each is generated at every load."""

MAX_ANSWER_TOKENS = 256
"""Maximum tokens of an answer."""

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class TextExample:
    """A prompt of a language model, and its answer at temperature 0.

    prompt: A text, or the ids of its tokens; default None: the prompt is `messages`.
    messages: The messages of a chat, as in OpenAI's API; default None: the prompt is `prompt`.
    max_tokens: The maximum of the answer's tokens; default None: MAX_ANSWER_TOKENS.
    answer: The answer's text; default None: it is not compared.
    tokens: The ids of the answer's tokens, with the one that ends it; default None: they are not
        compared.
    """

    prompt: str | tuple[TokenId, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_ANSWER_TOKENS)] | None = None
    answer: str | None = None
    tokens: Annotated[tuple[TokenId, ...], Field(max_length=MAX_ANSWER_TOKENS)] | None = None


TEXT_KEYS = tuple(one.name for one in fields(TextExample))


@cache
def _text() -> TypeAdapter[TextExample]:
    return TypeAdapter(TextExample)


def parse_text_example(given: Mapping[str, Any]) -> TextExample:
    """Parse an example of a config. Raises LoadFailed."""
    for key in given:
        if key not in TEXT_KEYS:
            raise LoadFailed(unknown_key(key, TEXT_KEYS))
    try:
        return _text().validate_python(given)
    except ValidationError as error:
        raise LoadFailed(explain_invalid(error)) from None
