"""Answers that have a form: a JSON object, an instance of a JSON schema, or a regular language.

llguidance computes the tokens that may be next. It counts the work of each step, so that a hostile
grammar ends with an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from cohort.errors import InvalidInput, shortened
from cohort.generation import Guide
from cohort.generative.schema_limits import excess
from cohort.generative.vocabulary import Vocabulary

MAX_GRAMMAR = 1 << 17
"""Maximum characters of a schema or an expression."""

MAX_PIECE = 32
"""Maximum bytes of a token in a text that an answer must contain."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,  # about 10 ms
    step_lexer_fuel=50_000,  # about 4 ms
    step_max_items=10_000,
    max_lexer_states=50_000,  # about 100 MB
    max_grammar_size=100_000,
    verbose_errors=False,
)

# One line break with an indentation, or some spaces: a model that writes white space without end
# would fill its answer.
WHITE_SPACE = r"(\r?\n[ \t]{0,20}|[ \t]{1,4})"

_JSON: Any = {
    "whitespace_flexible": True,
    "whitespace_pattern": WHITE_SPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": True,
    "lenient": False,
}


class _Tokens:
    """The tokens of a vocabulary in the form of the library."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = list(vocabulary.pieces)
        end_tokens = sorted(vocabulary.end_tokens)
        pieces += [b""] * (max(end_tokens, default=0) + 1 - len(pieces))
        if not end_tokens:  # the library needs one; the model cannot choose this
            end_tokens = [len(pieces)]
            pieces.append(b"")
        self.tokens = pieces
        self.end_tokens = end_tokens
        self.eos_token_id = end_tokens[0]
        self.bos_token_id = None
        self.special_token_ids = sorted({*vocabulary.special, *end_tokens})
        self._vocabulary = vocabulary
        plain = set(range(len(pieces))).difference(self.special_token_ids)
        self._ids = {pieces[token]: token for token in sorted(plain, reverse=True)}

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that an answer must contain next, for the library."""
        if not isinstance(text, str):
            raise TypeError("a text is expected")
        raw, tokens = text.encode(), self._vocabulary.encode(text, rendered=True)
        if b"".join(map(self._vocabulary.bytes_of, tokens)) == raw:
            return tokens
        return list(self._longest(raw))  # tokenizers may put a space before a text

    def _longest(self, raw: bytes) -> Iterator[int]:
        """Yield tokens, each as long as possible."""
        start = 0
        while start < len(raw):
            ends = range(min(len(raw), start + MAX_PIECE), start, -1)
            end = next((end for end in ends if raw[start:end] in self._ids), None)
            if end is None:
                return  # the library continues without tokens
            yield self._ids[raw[start:end]]
            start = end


_tokenizers: WeakKeyDictionary[Vocabulary, LLTokenizer] = WeakKeyDictionary()
_making = Lock()


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Return the library's form of a vocabulary, made for the first guide."""
    with _making:
        found = _tokenizers.get(vocabulary)
        if found is None:
            tokens = _Tokens(vocabulary)
            found = LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.end_tokens)
            _tokenizers[vocabulary] = found
        return found


class CompiledGuide:
    """The grammar of a guide, for a vocabulary."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> MatchedGuide:
        """Return the state at the beginning of an answer; one for each choice."""
        return MatchedGuide(self._matcher.deep_copy())


class MatchedGuide:
    """The place of an answer in its grammar. Implements `GuideState`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def ended(self) -> bool:
        """True if the answer is complete, and no token may follow but an end token."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> NDArray[np.bool_]:
        """Return a boolean for each token, True if it may be next. Raises InvalidInput."""
        mask = self._matcher.compute_bitmask()
        self._check()
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token: int) -> None:
        """Continue after `token`. Raises InvalidInput."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidInput(
                f"the answer's form became too complex: {_reason(self._matcher.get_error())}",
                "response_format",
            )


def compile_guide(guide: Guide, vocabulary: Vocabulary) -> CompiledGuide:
    """Compile the grammar of a guide, on a thread; typically in some milliseconds.

    Raises InvalidInput if the grammar is wrong, not supported, too large, or permits no answer.
    """
    if len(guide.grammar) > MAX_GRAMMAR:
        raise InvalidInput(
            f"the grammar has {len(guide.grammar)} characters; the limit is {MAX_GRAMMAR}",
            "response_format",
        )
    matcher = LLMatcher(_tokenizer(vocabulary), _grammar(guide), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise _wrong(guide, _reason(matcher.get_error()))
    first = matcher.deep_copy()  # it shares what it computes with later states
    possible = any(first.compute_bitmask())
    if first.is_error() or not possible:
        raise _wrong(guide, _reason(first.get_error()))
    return CompiledGuide(matcher)


def _grammar(guide: Guide) -> str:
    if guide.kind == "regex":
        return LLMatcher.grammar_from_regex(guide.grammar)
    text = guide.grammar if guide.kind == "json_schema" else '{"type": "object"}'
    try:
        schema = json.loads(text)
        if not isinstance(schema, dict):
            raise _wrong(guide, "it must be an object")
        if problem := excess(schema):
            raise _wrong(guide, problem)
        return LLMatcher.grammar_from_json_schema(text, overrides=_JSON)
    except (ValueError, RecursionError) as error:
        raise _wrong(guide, str(error)) from None


def _wrong(guide: Guide, reason: str) -> InvalidInput:
    kind = "regular expression" if guide.kind == "regex" else "JSON schema"
    return InvalidInput(f"the {kind} cannot be used: {reason}", "response_format")


def _reason(message: str) -> str:
    """Return the library's message on one line."""
    lines: Sequence[str] = message.split("<state>", maxsplit=1)[0].split()
    return shortened(" ".join(lines) or "no answer has this form", 300)
