"""The events of a language model's engine, with plain values. They are reported on the event loop.

Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Admitted(NamedTuple):
    """A choice of a request begins, or continues after a pre-emption.

    prompt: The tokens of its prompt.
    cached: Those of them that need no computation, because another request had them before.
    waited: The time since it arrived, or since it was pre-empted.
    again: True if it continues after a pre-emption.
    """

    prompt: int
    cached: int
    waited: float
    again: bool


class FirstToken(NamedTuple):
    """A choice of a request has its first token, `seconds` after the request arrived."""

    seconds: float


class Stepped(NamedTuple):
    """A step of the model.

    prompt: The tokens of prompts that it computed.
    answer: The new tokens of answers, first ones included.
    between: For each new token that is not the first of its choice, the time since the last one.
    seconds: The duration of the step.
    variants: For each new token, the variant of its request.
    """

    prompt: int
    answer: int
    between: Sequence[float]
    seconds: float
    variants: Sequence[str] = ()


class Preempted(NamedTuple):
    """A choice lost its place in the cache to others, and waits to be computed again.

    tokens: Its tokens, those of the prompt included.
    variant: The variant of its request.
    """

    tokens: int
    variant: str = ""


class Ended(NamedTuple):
    """A request ended.

    code: "OK", the name of its error, or "Cancelled".
    prompt: The tokens of its prompt.
    cached: Those of them that needed no computation.
    answer: The new tokens of all choices.
    seconds: The time since it arrived.
    variant: Its variant.
    """

    code: str
    prompt: int
    cached: int
    answer: int
    seconds: float
    variant: str = ""


class Closed(NamedTuple):
    """The engine is closed; it reports nothing more."""


GenerationEvent = Admitted | FirstToken | Stepped | Preempted | Ended | Closed

GenerationObserver = Callable[[GenerationEvent], None]


class GenerationState(NamedTuple):
    """The state of an engine now, for gauges.

    running: The choices that have a place in the cache.
    waiting: The choices that wait for one.
    cache_used: Bytes of the cache that running choices hold.
    cache_prefixes: Bytes of prompts kept for later requests; others may take them at any time.
    cache_total: The maximum bytes of the cache.
    """

    running: int
    waiting: int
    cache_used: int
    cache_prefixes: int
    cache_total: int


MakeObserver = Callable[[str, str, Callable[[], GenerationState]], GenerationObserver]
"""Makes the observer of a version, from its model, version and a function that returns its state.

That function is called on the event loop, until `Closed`.
"""
