"""The tokens of a language model: their bytes, and the conversion of prompts."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from cohort.errors import InvalidInput, LoadFailed, TooLarge, quoted
from cohort.generative.chat_template import ChatTemplate, open_template
from cohort.generative.special_texts import SpecialTexts
from cohort.generative.tool_calls import TOOL_MARKERS
from cohort.processing.patterns import is_explosive
from cohort.processing.tokenizing import encode_places, encode_text, measure, open_tokenizer

MAX_PROMPT_CHARACTERS = 1 << 20
"""Maximum characters of a prompt, for quick tokenizers."""

MAX_TOKENS = 1 << 20
"""Maximum ids of a vocabulary."""

MAX_BYTES = 1 << 28
"""Maximum bytes of all tokens, as a decoder can write long texts for short tokens."""

ANCHOR = "a"
"""A text before a token, to see how the token continues a text."""


class Vocabulary:
    """The tokens of a model, and the conversion of texts. Used on any thread.

    size: The largest id plus 1, those of added tokens included.
    plain_size: The largest id plus 1 of tokens that were not added to the tokenizer's model.
    end_tokens: The ids that end an answer.
    special: The ids that are not part of texts, such as end tokens.
    special_texts: Their texts.
    template: The chat template; None: the model does not chat.
    tool_tokens: Special tokens that begin calls of tools; `AnswerText` shows them if asked to.
    most_characters: The maximum characters of a prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_tokens: Collection[int],
        template: ChatTemplate | None = None,
    ) -> None:
        self.most_characters, _ = measure(tokenizer, MAX_PROMPT_CHARACTERS)
        self._tokenizer = tokenizer
        self.end_tokens = frozenset(end_tokens)
        self.template = template
        names = {i: name for name, i in tokenizer.get_vocab(with_added_tokens=True).items()}
        self.size: int = max(names, default=0) + 1
        if self.size > MAX_TOKENS:
            raise LoadFailed(
                f"tokenizer.json has the id {self.size - 1}; the limit is {MAX_TOKENS - 1}"
            )
        added = tokenizer.get_added_tokens_decoder()
        self.plain_size = max(names.keys() - added.keys(), default=0) + 1
        special = {i: token for i, token in added.items() if token.special}
        self.special = frozenset(special)
        self.special_texts = SpecialTexts(special.values(), tokenizer.normalizer)
        self._spelled = _spell(tokenizer, special)
        self.tool_tokens = frozenset(i for i in self.special if names.get(i) in TOOL_MARKERS)
        self._first, self._inside = _read_bytes(tokenizer, names, self.size)

    def encode(self, text: str, *, rendered: bool = False, plain: Sequence[int] = ()) -> list[int]:
        """Return the ids of a prompt, with those that tokenizer.json adds.

        rendered: True if a chat template made the text; nothing is added, as it writes all tokens.
        plain: The places of special tokens' texts that stay texts, in a rendered one; default:
            none.

        Raises TooLarge if the text is too long, and InvalidInput if the tokenizer rejects it.
        """
        if len(text) > self.most_characters:
            raise TooLarge(
                f"the prompt has {len(text)} characters; the limit is {self.most_characters}",
                "messages" if rendered else "prompt",
            )
        try:
            if plain:
                return self._encode_plain(text, plain)
            return encode_text(self._tokenizer, text, special=not rendered)
        except ValueError as error:
            raise InvalidInput(
                f"the model's tokenizer rejects the prompt: {error}",
                "messages" if rendered else "prompt",
            ) from None

    def _encode_plain(self, text: str, plain: Sequence[int]) -> list[int]:
        ids: list[int] = []
        for token, (start, end) in encode_places(self._tokenizer, text):
            at = bisect_left(plain, start)
            typed = token in self.special and at < len(plain) and plain[at] < end
            ids += self._spelled.get(token, ()) if typed else (token,)
        return ids

    def name_of(self, token: int) -> str | None:
        """Return how tokenizer.json writes a token; None for unknown ids."""
        name: str | None = self._tokenizer.id_to_token(token) if 0 <= token < self.size else None
        return name

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones; wrong UTF-8 is replaced."""
        shown = [one for one in tokens if one not in self.special and one < self.size]
        parts = [self.bytes_of(token, first=not place) for place, token in enumerate(shown)]
        return b"".join(parts).decode(errors="replace")

    def bytes_of(self, token: int, *, first: bool = False) -> bytes:
        """Return the bytes of a token inside a text, or at its start; empty for unknown ids."""
        if not 0 <= token < self.size:
            return b""
        return self._first.get(token, self._inside[token]) if first else self._inside[token]

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of all tokens inside a text, by id."""
        return tuple(self._inside)


def open_vocabulary(folder: Path, end_tokens: Collection[int]) -> Vocabulary:
    """Read the tokenizer and the chat template of a version's folder. Raises LoadFailed."""
    return Vocabulary(open_tokenizer(folder / "tokenizer.json"), end_tokens, open_template(folder))


def _spell(tokenizer: Tokenizer, special: Mapping[int, AddedToken]) -> dict[int, list[int]]:
    """Return the ids of special tokens' texts as plain texts, by the tokens' ids."""
    tokenizer.encode_special_tokens = True
    spelled: dict[int, list[int]] = {}
    for token, added in special.items():
        with suppress(ValueError):  # it rejects the text
            ids = encode_text(tokenizer, added.content, special=False)
            spelled[token] = [one for one in ids if one not in special]
    tokenizer.encode_special_tokens = False
    return spelled


def _read_bytes(
    tokenizer: Tokenizer, names: dict[int, str], size: int
) -> tuple[dict[int, bytes], list[bytes]]:
    """Return the bytes of tokens at the start of a text, where they differ, and inside of one.

    The decoder of the library is asked for each token, as it only decodes whole texts.
    """
    kinds = [kind for kind in _kinds(tokenizer) if kind != "Fuse"]
    first: dict[int, bytes] = {}
    inside = [b""] * size
    if kinds == ["ByteLevel"]:
        for token, name in names.items():
            inside[token] = _byte_level(name)
        return first, inside
    for kind in ("ByteLevel", "BPEDecoder", "CTC"):
        if kind in kinds:
            raise LoadFailed(f"tokenizer.json has the decoder {'+'.join(kinds)}: not supported")
    decode = " ".join if tokenizer.decoder is None else tokenizer.decoder.decode
    if decode([ANCHOR]) != ANCHOR:
        raise LoadFailed(f"tokenizer.json has the decoder {'+'.join(kinds)}: it changes plain text")
    total = 0
    for token, name in names.items():
        if "ByteFallback" in kinds and (byte := _fallback(name)) is not None:
            rest = byte
            start = decode([name]).encode() if byte == b" " else byte
        else:
            start = decode([name]).encode()
            rest = decode([ANCHOR, name])[len(ANCHOR) :].encode()
        inside[token] = rest
        if start != rest:
            first[token] = start
        total += len(rest)
        if total > MAX_BYTES:
            raise LoadFailed(f"the tokens of tokenizer.json have more than {MAX_BYTES >> 20} MiB")
    return first, inside


def _kinds(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the types of the parts of the decoder. Raises LoadFailed for slow expressions."""
    if tokenizer.decoder is not None:
        found: list[Any] = [json.loads(tokenizer.decoder.__getstate__())]
        while found:
            one = found.pop(0)
            if one["type"] == "Sequence":
                found = [*one["decoders"], *found]
                continue
            pattern = one["pattern"].get("Regex") if one["type"] == "Replace" else None
            if pattern is not None and is_explosive(pattern):
                raise LoadFailed(
                    f"tokenizer.json: the decoder's expression {quoted(pattern)} may never finish"
                )
            yield one["type"]


def _letters() -> dict[int, str]:
    """Return the bytes that each letter of byte-level tokens stands for, as Latin-1.

    Bytes that are printable letters stand for themselves; the others have the letters from U+0100,
    in order: https://github.com/openai/gpt-2/blob/master/src/encoder.py
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {256 + place: chr(byte) for place, byte in enumerate(others)}
    return {**dict.fromkeys(others, "\uffff"), **letters}


_LETTERS = _letters()


def _byte_level(name: str) -> bytes:
    """Return the bytes of a byte-level token; of one with other letters, its UTF-8."""
    try:
        return name.translate(_LETTERS).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()


def _fallback(name: str) -> bytes | None:
    """Return the byte that a token like `<0x0A>` stands for; None for others."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes.fromhex(name[3:5])
        except ValueError:
            return None
    return None
