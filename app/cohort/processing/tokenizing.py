"""Tokenizers from an untrusted `tokenizer.json`, with a limit on their run time.

The library cannot be interrupted. So each load measures its run time on texts that are hard for
some tokenizers. Texts that would take longer than SLOW_SECONDS are rejected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

from cohort.errors import InvalidInput, LoadFailed, quoted
from cohort.processing.patterns import is_explosive
from cohort.system.kept_files import read_content, why_unreadable

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would use cores of other work

from tokenizers import Encoding, Tokenizer

Text = str | tuple[str, str]
"""A text or a pair of texts."""

DEFAULT_LENGTH = 512

MAX_FILE_BYTES = 64 << 20

MAX_CHARACTERS = 1 << 18
"""Maximum characters of a text, which takes 0.1 s to 0.5 s with common tokenizers."""

MIN_CHARACTERS = 1 << 10
"""Characters that a tokenizer must process in less than SLOW_SECONDS."""

SLOW_SECONDS = 1.0

PROBED = (1 << 8, 1 << 10, 1 << 12, 1 << 14)
"""Lengths of the measured texts in characters."""

MAX_GROWTH = 32
"""Maximum ids per character, and maximum characters that a normalizer writes for one."""

ASKED_AT_ONCE = 1 << 16
"""Characters to pass to the library between two calls of `check`."""

TEXTS_AT_ONCE = 1 << 10

HARMLESS = frozenset({" {2,}"})
"""Regular expressions of known tokenizers whose time is linear in the length of the text."""


def open_tokenizer(file: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises LoadFailed."""
    name = file.name
    try:
        data = read_content(file, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise LoadFailed(
            f"{name} not found: put it into the version's folder. If a model has only vocab.txt or "
            "merges.txt, AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of "
            "transformers makes it"
        ) from None
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{name} {why_unreadable(error)}") from error
    try:
        tokenizer: Tokenizer = _guarded(lambda: Tokenizer.from_buffer(data))
    except ValueError as error:
        raise LoadFailed(
            f"{name} is not a tokenizer.json that the library can read: {error}"
        ) from error
    return tokenizer


def measure(tokenizer: Tokenizer, most: int) -> tuple[int, bool]:
    """Turn padding and truncation off; return the maximum characters of a text.

    most: The maximum for quick tokenizers.

    Also returns True if its regular expressions are known to be quick. Raises LoadFailed if the
    tokenizer is too slow.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    patterns = list(_check_parts(tokenizer))
    return (
        _find_most_characters(tokenizer, patterns, most),
        all(one in HARMLESS for one in patterns),
    )


def encode_text(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """Return the ids of one text, without the GIL.

    special: True to add the tokens that tokenizer.json adds.

    Raises ValueError if the tokenizer rejects the text.
    """
    (encoded,) = _guarded(lambda: tokenizer.encode_batch_fast([text], add_special_tokens=special))
    ids: list[int] = encoded.ids
    return ids


def encode_places(tokenizer: Tokenizer, text: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the ids of a text with their starts and ends in it. Raises as `encode_text`."""
    (encoded,) = _guarded(lambda: tokenizer.encode_batch([text], add_special_tokens=False))
    yield from zip(encoded.ids, encoded.offsets, strict=True)


class Ids(NamedTuple):
    """The ids of a text or a pair of texts, and the type of each id."""

    ids: list[int]
    type_ids: list[int]


class TextTokenizer:
    """A tokenizer that converts texts to ids. Used on any thread.

    most_characters: Maximum characters of a text, to take less than SLOW_SECONDS.
    is_quick: True if short texts take little time. Unknown regular expressions may be slow.
    pad_id, pad_type: The id and the type of padding.
    pads_left: True if padding comes before the text.

    tokenizer: The library's tokenizer; this class changes it.
    max_length: Maximum ids of a text; None: the limit in the file, or else DEFAULT_LENGTH. Both
        are reduced to `taken`.
    taken: Maximum ids that the model accepts; default None: no limit.
    pairs: True to accept pairs of texts; default: single texts.

    Raises LoadFailed if the tokenizer is too slow.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int | None,
        taken: int | None = None,
        *,
        pairs: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        padding: dict[str, Any] = tokenizer.padding or {}
        truncation: dict[str, Any] = tokenizer.truncation or {}
        if max_length is None:
            max_length = truncation.get("max_length", DEFAULT_LENGTH)
            max_length = max_length if taken is None else min(max_length, taken)
        self.max_length: int = max_length
        self.pads_left = padding.get("direction") == "left"
        self.pad_type = int(padding.get("pad_type_id", 0))
        self.pad_id = int(padding.get("pad_id", _pad_id(tokenizer)))
        self.most_characters, known = measure(tokenizer, MAX_CHARACTERS)
        self.is_quick = known and self.most_characters == MAX_CHARACTERS
        direction = truncation.get("direction", "right")
        self._pairs = _Pairs(tokenizer, self.max_length, direction) if pairs else None
        if not pairs:
            tokenizer.enable_truncation(self.max_length, direction=direction)

    @property
    def id_count(self) -> int:
        """The number of ids in the vocabulary, with added tokens."""
        count: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return count

    @property
    def special_ids(self) -> int:
        """The number of special ids that are added to a text or a pair."""
        count: int = self._tokenizer.num_special_tokens_to_add(self._pairs is not None)
        return count

    def encode(self, texts: Sequence[Text], check: Callable[[], None]) -> list[Ids]:
        """Return the ids of texts of at most `most_characters` each.

        Raises InvalidInput, which names the row, if the tokenizer rejects a text.
        """
        encoded: list[Ids] = []
        part: list[Text] = []
        size = 0
        for text in texts:
            part.append(text)
            size += characters(text)
            if size > ASKED_AT_ONCE or len(part) >= TEXTS_AT_ONCE:
                encoded += self._encode(part, len(encoded))
                part, size = [], 0
                check()
        return encoded + self._encode(part, len(encoded)) if part else encoded

    def _encode(self, texts: list[Text], first: int) -> list[Ids]:
        try:
            if self._pairs is not None:
                return self._pairs.encode(texts)
            return [Ids(one.ids, one.type_ids) for one in _encode(self._tokenizer, texts)]
        except ValueError as error:
            if len(texts) == 1:
                raise InvalidInput(f"row {first}: its tokenizer rejects it: {error}") from None
        return [one for i, text in enumerate(texts) for one in self._encode([text], first + i)]


class _Pairs:
    """A tokenizer for pairs of texts, which truncates the longer text first.

    The library is not used to truncate pairs, because it keeps all that it cuts off. It combines
    each part of one text with each part of the other: 19 s for two texts of 100 KB.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, direction: str) -> None:
        self._tokenizer = tokenizer
        self._left = direction == "left"
        self._room = max_length - tokenizer.num_special_tokens_to_add(is_pair=True)
        (like,) = _encode(tokenizer, [("a", "a")])
        self._layout: list[tuple[int | None, int, int]] = []
        for place in zip(like.sequence_ids, like.ids, like.type_ids, strict=True):
            if place[0] is None or place[0] not in [text for text, _, _ in self._layout]:
                self._layout.append(place)
        if sorted(text for text, _, _ in self._layout if text is not None) != [0, 1]:
            raise LoadFailed("it makes no ids for pairs of texts")

    def encode(self, pairs: Sequence[Text]) -> list[Ids]:
        flat = [text for pair in pairs for text in pair]
        encoded: list[Encoding] = _guarded(
            lambda: self._tokenizer.encode_batch_fast(flat, add_special_tokens=False)
        )
        return [self._join(one.ids, other.ids) for one, other in batched_pairs(encoded)]

    def _join(self, *texts: list[int]) -> Ids:
        made = Ids([], [])
        lengths = kept_lengths(len(texts[0]), len(texts[1]), self._room)
        for text, special, kind in self._layout:
            ids = [special]
            if text is not None:
                whole, length = texts[text], lengths[text]
                ids = whole[len(whole) - length :] if self._left else whole[:length]
            made.ids.extend(ids)
            made.type_ids.extend([kind] * len(ids))
        return made


def batched_pairs(encoded: Sequence[Encoding]) -> Iterator[tuple[Encoding, Encoding]]:
    """Return the first item with the second, the third with the fourth, and so on."""
    return zip(encoded[::2], encoded[1::2], strict=True)


def kept_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two texts after truncation: first the longer one, then both to halves.

    https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/utils/truncation.rs
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
    return (longer, shorter) if first > second else (shorter, longer)


def characters(text: Text) -> int:
    """Return the length of a text, or the sum for a pair."""
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def _encode(tokenizer: Tokenizer, texts: Sequence[Text]) -> list[Encoding]:
    made: list[Encoding] = _guarded(lambda: tokenizer.encode_batch_fast(texts))
    return made  # `encode` holds the GIL


def _guarded(work: Callable[[], Any]) -> Any:
    """Call the library. Raises ValueError with the message of any error of the library."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise ValueError(" ".join(str(error).split())[:300]) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # from Rust; not an Exception
            raise
        raise ValueError(" ".join(str(error).split())[:300]) from None


def _pad_id(tokenizer: Tokenizer) -> int:
    known = [tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>", "<|endoftext|>", "</s>")]
    return next((one for one in known if one is not None), 0)


def _check_parts(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the regular expressions of a tokenizer's parts.

    Raises LoadFailed if a part could take exponential time or write too much text.
    """
    written = 1
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is None:
            continue
        for found in _objects(json.loads(part.__getstate__())):
            content = found.get("content") or found.get("prepend")
            written *= max(len(content), 1) if isinstance(content, str) else 1
            if written > MAX_GROWTH:
                raise LoadFailed(
                    f"its normalizer writes {written:,} characters for one; the limit is "
                    f"{MAX_GROWTH}"
                )
            pattern = found.get("Regex")
            if not isinstance(pattern, str):
                continue
            if is_explosive(pattern):
                raise LoadFailed(
                    f"its regular expression {quoted(pattern, 80)} repeats a group with "
                    "repetitions or alternatives in it; for some texts it would never finish"
                )
            yield pattern


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if type(value) is list else ():
        yield from _objects(one)


def _find_most_characters(tokenizer: Tokenizer, patterns: Sequence[str], limit: int) -> int:
    """Return the maximum characters that take less than SLOW_SECONDS, estimated from short texts.

    The CPU time of this thread is measured, so other load on the machine has little effect.
    """
    most = float(limit)
    for unit in (*_hard_units(tokenizer), *_units_of(patterns)):
        former = (1, 0.0)
        for size in PROBED:
            begun = thread_time()
            try:
                (encoding,) = _encode(tokenizer, [unit * (size // len(unit))])
            except ValueError:  # it rejects this kind, or this length
                most = most if size == PROBED[0] else min(most, former[0])
                break
            taken = max(thread_time() - begun, 1e-6)
            if len(encoding.ids) > MAX_GROWTH * size + tokenizer.num_special_tokens_to_add(False):
                raise LoadFailed(f"it makes {len(encoding.ids)} ids of {size} characters")
            if size == PROBED[-1] or taken > SLOW_SECONDS / 64:
                most = min(most, _extrapolate(former, (size, taken)))
                break
            former = (size, taken)
    if most < MIN_CHARACTERS:
        raise LoadFailed(
            f"it takes more than {SLOW_SECONDS:g} s for a text of {MIN_CHARACTERS} characters"
        )
    return int(most)


def _extrapolate(first: tuple[int, float], second: tuple[int, float]) -> float:
    """Return the size that takes SLOW_SECONDS, from two sizes with their seconds.

    Time is assumed to be a power of the size.
    """
    (size, taken), (less, before) = second, first
    power = log(taken / before) / log(size / less) if before else 3.0
    longer: float = (SLOW_SECONDS / taken) ** (1 / min(max(power, 1.0), 4.0))
    return size * longer


def _hard_units(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield strings that are hard for some tokenizers when repeated."""
    yield from ("a", " ", "the quick, brown fox ", "qzjxkvw", "1", "!?", "漢字", "🙂", "e\u0301\n")
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    yield max(filter(None, map(tokenizer.id_to_token, ids)), key=len, default="a")[:256]


def _units_of(patterns: Sequence[str]) -> Iterator[str]:
    """Yield prefixes of likely matches of the regular expressions, to repeat partial matches."""
    for pattern in patterns:
        letters = "".join(dict.fromkeys(filter(str.isalnum, pattern)))[:4]
        yield from (letters[:count] for count in range(1, len(letters) + 1))
