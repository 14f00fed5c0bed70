"""Texts of special tokens in messages, which stay texts: only the chat template writes tokens.

Otherwise, a user could type `<|system|>` and fake a message. A template may cut, escape or repeat
messages, so their texts cannot be found in its output. While it runs, marks of digits that no
caller can guess replace them.

Texts that only the template makes special tokens, by joining or deleting parts of messages, become
tokens: `{{ name }}{{ content }}` joins `<|sys` and `tem|>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from secrets import randbelow
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers

from cohort.processing.tokenizing import encode_places

DIGITS = 7
"""Digits of a text's number, behind the key."""

COMPARED = ("role", "type")
"""Keys whose values templates compare."""

OTHER = "\0"
"""The token of the texts between special tokens."""


def new_key() -> str:
    """Return the beginning of all marks of one prompt."""
    return str(10**29 + randbelow(9 * 10**29))


class SpecialTexts:
    """The texts of a vocabulary's special tokens. Used on any thread.

    tokens: The special tokens.
    normalizer: The tokenizer's normalizer; None: it does not have one.
    """

    def __init__(
        self, tokens: Iterable[AddedToken], normalizer: normalizers.Normalizer | None
    ) -> None:
        self._finder = Tokenizer(models.WordLevel({OTHER: 0}, unk_token=OTHER))
        self._finder.normalizer = normalizer
        self._finder.add_special_tokens([*tokens])

    def hide(self, value: Any, key: str) -> Any:
        """Return a value of JSON with marks in place of the texts.

        Keys, roles and types that are words stay, since templates read them.

        Raises RecursionError, and ValueError if the normalizer rejects a text.
        """
        if isinstance(value, str):
            return self._hide_in(value, key)
        if isinstance(value, Mapping):
            return {
                self._hide_name(name, key): (self._hide_name if name in COMPARED else self.hide)(
                    one, key
                )
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.hide(one, key) for one in value]
        return value

    def _hide_name(self, value: Any, key: str) -> Any:
        is_word = isinstance(value, str) and value.isidentifier()
        return value if is_word else self.hide(value, key)

    def _hide_in(self, text: str, key: str) -> str:
        parts, at = [], 0
        for number, (start, end) in encode_places(self._finder, text):
            if number:
                parts += [text[at:start], f"{key}{number:0{DIGITS}}"]
                at = end
        return "".join([*parts, text[at:]]) if parts else text

    def show(self, text: str, key: str) -> tuple[str, list[int]]:
        """Return a text with the texts in place of their marks, and the places of these."""
        first, *others = text.split(key)
        parts = [first, *(self._text(part[:DIGITS]) + part[DIGITS:] for part in others)]
        return "".join(parts), [*accumulate(map(len, parts[:-1]))]

    def _text(self, digits: str) -> str:
        """Return the text with this number; "" if the template has cut the mark."""
        return (self._finder.id_to_token(int(digits)) or "") if digits.isdecimal() else ""
