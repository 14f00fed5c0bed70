"""A `tokenizer.json` of an unknown author: opened, and held to what it may cost.

The library cannot be interrupted. So what it costs is tried at load, on texts that are hard for
some tokenizers, and texts that would take longer than SLOW_SECONDS are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from time import thread_time
from typing import Any

from cohort.errors import InvalidInput, LoadFailed, quoted
from cohort.processing.patterns import is_explosive

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would take others' cores

from tokenizers import Encoding, Tokenizer

Text = str | tuple[str, str]
"""A text, or a pair of them."""

DEFAULT_LENGTH = 512

MOST_FILE_BYTES = 64 << 20

MOST_CHARACTERS = 1 << 18
"""Of a text: a tenth of a second to half a second with the usual tokenizers."""

LEAST_CHARACTERS = 1 << 10
"""What a tokenizer must take in less than SLOW_SECONDS."""

SLOW_SECONDS = 1.0

PROBED = (1 << 8, 1 << 10, 1 << 12, 1 << 14)
"""Characters of the texts that are tried."""

MOST_GROWTH = 32
"""Ids that a character becomes at most, and characters that a normalizer writes for one."""

ASKED_AT_ONCE = 1 << 16
"""Characters that are given to the library before anybody asks whether to go on."""

TEXTS_AT_ONCE = 1 << 10

HARMLESS = frozenset({" {2,}"})
"""Regular expressions of known tokenizers that take as long as the text is."""


def open_tokenizer(file: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises LoadFailed."""
    name = file.name
    try:
        if (size := file.stat().st_size) > MOST_FILE_BYTES:
            raise LoadFailed(f"{name} has {size >> 20} MiB, of {MOST_FILE_BYTES >> 20} at most")
        data = file.read_bytes()
    except FileNotFoundError:
        raise LoadFailed(
            f"there is no {name} beside model.onnx: put it into the version's folder; where a "
            "model has only vocab.txt or merges.txt, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers makes it"
        ) from None
    except OSError as error:
        raise LoadFailed(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        tokenizer: Tokenizer = _guarded(lambda: Tokenizer.from_buffer(data))
    except ValueError as error:
        raise LoadFailed(f"{name} is no tokenizer.json that the library reads: {error}") from error
    return tokenizer


class TextTokenizer:
    """Makes ids of texts. Used on any thread.

    most_characters: Of a text, which takes less than SLOW_SECONDS then.
    unbounded: Whether it has regular expressions, whose time the length of a text does not bound.
    pad_id, pad_type: What stands for no id, and the type of that.
    pads_left: Whether that stands before the text.

    tokenizer: Changed by this.
    max_length: Ids of a text at most; None: what the file says, or else DEFAULT_LENGTH.
    taken: Ids that the model takes, at most; default None: any number.

    Raises LoadFailed for one that takes too long.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_length: int | None, taken: int | None = None
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
        tokenizer.no_padding()
        tokenizer.no_truncation()
        patterns = list(_check_parts(tokenizer))
        self.unbounded = any(one not in HARMLESS for one in patterns)
        self.most_characters = _find_most_characters(tokenizer, patterns)
        tokenizer.enable_truncation(
            self.max_length,
            stride=0,
            strategy=truncation.get("strategy", "longest_first"),
            direction=truncation.get("direction", "right"),
        )

    @property
    def id_count(self) -> int:
        """How many ids it has."""
        count: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return count

    def special_ids(self, *, pairs: bool) -> int:
        """How many ids a text, or a pair, has that stand for no word."""
        count: int = self._tokenizer.num_special_tokens_to_add(pairs)
        return count

    def encode(self, texts: Sequence[Text], check: Callable[[], None]) -> list[Encoding]:
        """The ids of texts, none of which is longer than `most_characters`.

        Raises InvalidInput, which names the row that is not taken.
        """
        encoded: list[Encoding] = []
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

    def _encode(self, texts: list[Text], first: int) -> list[Encoding]:
        try:
            return _encode(self._tokenizer, texts)
        except ValueError as error:
            if len(texts) == 1:
                raise InvalidInput(
                    f"row {first}: its tokenizer does not take it: {error}"
                ) from None
        return [one for i, text in enumerate(texts) for one in self._encode([text], first + i)]


def characters(text: Text) -> int:
    """The length of a text, or of both of a pair."""
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def _encode(tokenizer: Tokenizer, texts: Sequence[Text]) -> list[Encoding]:
    made: list[Encoding] = _guarded(lambda: tokenizer.encode_batch_fast(texts))
    return made  # `encode` would hold the GIL


def _guarded(work: Callable[[], Any]) -> Any:
    """Do what the library may fail at. Raises ValueError with what it says."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - its own are of no other class
        raise ValueError(" ".join(str(error).split())[:300]) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's, which is no Exception
            raise
        raise ValueError(" ".join(str(error).split())[:300]) from None


def _pad_id(tokenizer: Tokenizer) -> int:
    known = [tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>", "<|endoftext|>", "</s>")]
    return next((one for one in known if one is not None), 0)


def _check_parts(tokenizer: Tokenizer) -> Iterator[str]:
    """The regular expressions of its parts. Raises LoadFailed for what may take for ever."""
    written = 1
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is None:
            continue
        for found in _objects(json.loads(part.__getstate__())):
            content = found.get("content") or found.get("prepend")
            written *= max(len(content), 1) if isinstance(content, str) else 1
            if written > MOST_GROWTH:
                raise LoadFailed(
                    f"its normalizer writes {written:,} characters for one, "
                    f"of {MOST_GROWTH} at most"
                )
            pattern = found.get("Regex")
            if not isinstance(pattern, str):
                continue
            if is_explosive(pattern):
                raise LoadFailed(
                    f"its regular expression {quoted(pattern, 80)} repeats a group with "
                    "repetitions or alternatives in it, which some texts make take for ever"
                )
            yield pattern


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if type(value) is list else ():
        yield from _objects(one)


def _find_most_characters(tokenizer: Tokenizer, patterns: Sequence[str]) -> int:
    """The longest text that takes less than SLOW_SECONDS, as shorter ones tell.

    Time is this thread's own, so that a busy machine changes little.
    """
    most = float(MOST_CHARACTERS)
    for unit in (*_hard_units(tokenizer), *_units_of(patterns)):
        former = (1, 0.0)
        for size in PROBED:
            begun = thread_time()
            try:
                (encoding,) = _encode(tokenizer, [unit * (size // len(unit))])
            except ValueError:  # it takes none of this kind, or none so long
                most = most if size == PROBED[0] else min(most, former[0])
                break
            taken = max(thread_time() - begun, 1e-6)
            if len(encoding.ids) > MOST_GROWTH * size + tokenizer.num_special_tokens_to_add(False):
                raise LoadFailed(f"it makes {len(encoding.ids)} ids of {size} characters")
            if size == PROBED[-1] or taken > SLOW_SECONDS / 64:
                most = min(most, _extrapolate(former, (size, taken)))
                break
            former = (size, taken)
    if most < LEAST_CHARACTERS:
        raise LoadFailed(
            f"it takes more than {SLOW_SECONDS:g} s for a text of {LEAST_CHARACTERS} characters"
        )
    return int(most)


def _extrapolate(first: tuple[int, float], second: tuple[int, float]) -> float:
    """The size that takes SLOW_SECONDS, of two with their seconds: time is a power of the size."""
    (size, taken), (less, before) = second, first
    power = log(taken / before) / log(size / less) if before else 3.0
    longer: float = (SLOW_SECONDS / taken) ** (1 / min(max(power, 1.0), 4.0))
    return size * longer


def _hard_units(tokenizer: Tokenizer) -> Iterator[str]:
    """What texts are made of by repetition that are hard for some tokenizers."""
    yield from ("a", " ", "the quick, brown fox ", "qzjxkvw", "1", "!?", "漢字", "🙂", "e\u0301\n")
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    yield max(filter(None, map(tokenizer.id_to_token, ids)), key=len, default="a")[:256]


def _units_of(patterns: Sequence[str]) -> Iterator[str]:
    """Beginnings of what regular expressions find: what they begin to match, again and again."""
    for pattern in patterns:
        letters = "".join(dict.fromkeys(filter(str.isalnum, pattern)))[:4]
        yield from (letters[:count] for count in range(1, len(letters) + 1))
