"""The parts of answers in OpenAI's form, whole and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from time import time
from typing import Any

import orjson

from cohort.generation import TokenLogprob, Usage
from cohort.http.calls import Encoded
from cohort.http.version_headers import version_headers
from cohort.serving import Lease

DONE = b"data: [DONE]\n\n"

MIN_LOGPROB = -9999.0
"""Written instead of minus infinity, which JSON does not have."""


def new_id(prefix: str) -> str:
    """Return a new id, as `chatcmpl-6f…`."""
    return prefix + token_hex(12)


def new_head(prefix: str, kind: str, lease: Lease) -> dict[str, Any]:
    """Return the first keys of an answer, or of all chunks of one."""
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time()),
        "model": lease.model,
        "system_fingerprint": f"{lease.model}-{lease.version}",
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the numbers of tokens."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def whole_answer(
    head: Mapping[str, Any], choices: list[Any], usage: Usage, lease: Lease
) -> Encoded:
    """Return an answer in one body."""
    body = orjson.dumps({**head, "choices": choices, "usage": usage_object(usage)})
    return Encoded(body, version_headers(lease.version, lease.variant, "application/json"))


class EventWriter:
    """Writes the chunks of one answer as server-sent events.

    head: The keys that all chunks share.
    usage: True if the last chunk has the number of tokens, and the others null.

    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    def __init__(self, head: Mapping[str, Any], *, usage: bool) -> None:
        self._usage = usage
        self._begin = b"data: %b," % orjson.dumps(head)[:-1]
        self._end = b',"usage":null}\n\n' if usage else b"}\n\n"

    def events(self, choices: Iterable[Mapping[str, Any]]) -> bytes | None:
        """Return one event for each choice's new part; None without one."""
        begin, end = self._begin, self._end
        body = b"".join(
            [b'%b"choices":[%b]%b' % (begin, orjson.dumps(one), end) for one in choices]
        )
        return body or None

    def last(self, usage: Usage) -> bytes:
        """Return the last events."""
        if not self._usage:
            return DONE
        used = orjson.dumps(usage_object(usage))
        return b'%b"choices":[],"usage":%b}\n\n%b' % (self._begin, used, DONE)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> list[Any]:
    """Return the logprobs of a chat's tokens."""
    return [{**_token(one), "top_logprobs": [_token(top) for top in one.top]} for one in tokens]


def _token(one: TokenLogprob) -> dict[str, Any]:
    return {"token": one.text, "logprob": _finite(one.logprob), "bytes": list(one.raw)}


class TextLogprobs:
    """Collects the logprobs of a completion's tokens.

    top: True if the most likely tokens are reported.
    offset: The characters before the first token.
    """

    def __init__(self, *, top: bool, offset: int) -> None:
        self._top = top
        self._offset = offset

    def of(self, tokens: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        """Return the logprobs of the next tokens."""
        offsets = []
        for one in tokens:
            offsets.append(self._offset)
            self._offset += len(one.text)
        found: dict[str, list[Any]] = {
            "text_offset": offsets,
            "token_logprobs": [_finite(one.logprob) for one in tokens],
            "tokens": [one.text for one in tokens],
        }
        if self._top:
            found["top_logprobs"] = [
                {other.text: _finite(other.logprob) for other in reversed(one.top)}
                for one in tokens
            ]
        return found


def _finite(logprob: float) -> float:
    return max(float(logprob), MIN_LOGPROB)
