"""The text of an answer while its tokens arrive, and the stop strings that end it."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence, Set
from functools import lru_cache

from cohort.errors import InvalidInput
from cohort.generation import Conversation, GenerationRequest
from cohort.generative.vocabulary import Vocabulary

STOP_STRINGS = 16

STOP_CHARACTERS = 1024

_Utf8 = getincrementaldecoder("utf-8")


def check_stop(stop: Sequence[str]) -> None:
    """Check the number and the lengths of stop strings. Raises InvalidInput."""
    if len(stop) > STOP_STRINGS:
        raise InvalidInput(f"stop has {len(stop)} strings; the limit is {STOP_STRINGS}", "stop")
    for one in stop:
        if not 0 < len(one) <= STOP_CHARACTERS:
            raise InvalidInput(
                f"a stop string must have from 1 to {STOP_CHARACTERS} characters, got {len(one)}",
                "stop",
            )


def begin_answer(
    vocabulary: Vocabulary, request: GenerationRequest, prompt: Sequence[int]
) -> AnswerText:
    """Return the text of one choice of a request.

    prompt: The ids of its prompt. If a special token ends it, the answer begins a text.
    """
    chat = isinstance(request.prompt, Conversation)
    tools = vocabulary.tool_tokens if chat and _has_tools(request) else frozenset()
    follows = bool(prompt) and prompt[-1] not in vocabulary.special
    return AnswerText(vocabulary, request.stop, follows=follows, shown=tools)


def _has_tools(request: GenerationRequest) -> bool:
    return isinstance(request.prompt, Conversation) and bool(request.prompt.tools)


class AnswerText:
    """The text of one choice, without stop strings and special tokens.

    Characters are complete; what may be the start of a stop string is held back. The time for a
    token does not depend on the length of the answer.

    stopped: True after a stop string; later tokens have no text.

    vocabulary: The tokens.
    stop: Texts that end the answer; of two that end with the same character, the longer one.
    follows: True if the answer continues a text; False: it begins one, without a leading space.
    shown: Special tokens whose text is part of the answer, such as those before calls of tools.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop: Sequence[str] = (),
        *,
        follows: bool = False,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._vocabulary = vocabulary
        self._hidden = vocabulary.special - shown if shown else vocabulary.special
        self._first = not follows
        self._decoder = _Utf8("replace")
        self._stops = [(one, _fallbacks(one)) for one in stop]
        self._matched = [0] * len(stop)  # the characters of each stop string at the text's end
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the new text that can be sent."""
        if self.stopped or token in self._hidden:
            return ""
        raw = self._vocabulary.bytes_of(token, first=self._first)
        self._first = self._first and token >= self._vocabulary.size
        text = self._decoder.decode(raw)
        return self._release(text) if self._stops else text

    def rest(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        """Return the text that is in no stop string, which may begin before `text`."""
        whole = self._held + text
        for end, letter in enumerate(text, len(self._held) + 1):
            longest = self._match(letter)
            if longest:
                self.stopped, self._held = True, ""
                return whole[: end - longest]
        kept = len(whole) - max(self._matched, default=0)
        self._held = whole[kept:]
        return whole[:kept]

    def _match(self, letter: str) -> int:
        """Continue all stop strings; return the length of the longest complete one, or 0.

        The algorithm is Knuth's, Morris' and Pratt's.
        """
        complete = 0
        for place, (stop, fallbacks) in enumerate(self._stops):
            matched = self._matched[place]
            while matched and stop[matched] != letter:
                matched = fallbacks[matched - 1]
            if stop[matched] == letter:
                matched += 1
                if matched == len(stop):
                    complete = max(complete, matched)
            self._matched[place] = matched
        return complete


@lru_cache(maxsize=256)
def _fallbacks(stop: str) -> Sequence[int]:
    """Return for each prefix the length of its longest proper suffix that is also a prefix."""
    lengths = [0]
    for letter in stop[1:]:
        matched = lengths[-1]
        while matched and stop[matched] != letter:
            matched = lengths[matched - 1]
        lengths.append(matched + 1 if stop[matched] == letter else 0)
    return lengths
