"""The tokens of a language model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from cohort.generative.chat_template import ChatTemplate
from cohort.processing.tokenizing import open_tokenizer


class Vocabulary:
    """The tokens of a model, and the conversion of texts.

    size: The number of ids, those of added tokens included.
    end_tokens: The ids that end an answer.
    template: The chat template; None if the model has none.
    tool_tokens: Special tokens that begin calls of tools; `AnswerText` shows them if asked to.
    """

    def __init__(
        self, tokenizer: Tokenizer, end_tokens: Collection[int], template: ChatTemplate | None
    ) -> None:
        self._tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.end_tokens = frozenset(end_tokens)
        self.template = template
        self.tool_tokens: frozenset[int] = frozenset()

    def encode(self, text: str, *, rendered: bool = False) -> list[int]:
        """Return the ids of a prompt, with those that tokenizer.json adds. On any thread.

        rendered: True if a chat template made the text; nothing is added, as it writes all tokens.

        Raises InvalidInput if the text is too long.
        """
        encoded = self._tokenizer.encode(text, add_special_tokens=not rendered)
        ids: list[int] = encoded.ids
        return ids

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens))
        return text

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token inside a text; empty for unknown ids."""
        return (self._tokenizer.id_to_token(token) or "").encode()


def open_vocabulary(folder: Path, end_tokens: Collection[int]) -> Vocabulary:
    """Read the tokenizer and the chat template of a version's folder. Raises LoadFailed."""
    return Vocabulary(open_tokenizer(folder / "tokenizer.json"), end_tokens, None)
