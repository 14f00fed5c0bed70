"""Several prompts of one request."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.generation import GenerationRequest
from cohort.serving.prompts import PreparedPrompts


@dataclass
class Prepared:
    """A prepared prompt that counts how often its tokens are read."""

    request: GenerationRequest
    read: int = 0
    text: str = "one two"
    max_tokens: int = 8

    @property
    def prompt(self) -> list[int]:
        self.read += 1
        return [1, 2]


def test_their_tokens_are_joined_once() -> None:
    """The prompt of several prompts has the tokens of all, and is made on first use."""
    request = GenerationRequest("one two")
    parts = [Prepared(request), Prepared(request)]
    together = PreparedPrompts(request, parts)
    assert list(together.prompt) == [1, 2, 1, 2]
    assert together.prompt is together.prompt
    assert [one.read for one in parts] == [1, 1]
