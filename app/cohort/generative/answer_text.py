"""The text of an answer, while its tokens arrive."""

from __future__ import annotations

from collections.abc import Set

from cohort.generative.vocabulary import Vocabulary


class AnswerText:
    """The text of one choice, without stop strings and special tokens.

    vocabulary: The tokens.
    stop: Texts that end the answer.
    follows: True if the answer continues a text; False: it begins one, without a leading space.
    shown: Special tokens whose text is part of the answer, such as those before calls of tools.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop: tuple[str, ...] = (),
        *,
        follows: bool = False,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._sent = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the new text that can be sent."""
        self._tokens.append(token)
        text = self._vocabulary.text_of(self._tokens)
        new = text[len(self._sent) :]
        self._sent = text
        return new

    def rest(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        return ""
