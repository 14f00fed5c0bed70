"""Benchmark target: chats with a language model, as streams of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import httpx

from cohort.cli.bench_command.loops import Send
from cohort.cli.bench_command.report import PERCENTILES, at, milliseconds
from cohort.cli.bench_command.targets import TargetUnusable, open_clients

PATH = "/v1/chat/completions"


class ChatOptions(NamedTuple):
    """The chat that each request sends.

    prompt: The user's message.
    max_tokens: The maximum of tokens of an answer.
    temperature: The temperature; 0 is greedy.
    """

    prompt: str
    max_tokens: int
    temperature: float


@dataclass
class Streams:
    """Figures of streams, each with the time when it was read.

    first: Seconds from a request to its first token.
    between: Seconds from one read to the next, divided by the tokens of the latter; one per part.
    tokens: Tokens of answers; those of an answer are spread evenly over its parts.
    prompt_tokens: Tokens of prompts.
    """

    first: list[tuple[float, float]] = field(default_factory=list)
    between: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[tuple[float, float]] = field(default_factory=list)
    prompt_tokens: list[tuple[float, float]] = field(default_factory=list)

    def add(self, began: float, parts: Sequence[float], usage: dict[str, int]) -> None:
        """Add a complete answer. `parts`: the times of its parts, equal in one read."""
        if parts:
            self.first.append((parts[0], parts[0] - began))
            self.prompt_tokens.append((parts[0], usage.get("prompt_tokens", 0)))
        each = usage.get("completion_tokens", len(parts)) / max(len(parts), 1)
        self.tokens += [(time, each) for time in parts]
        for (sooner, _), (later, count) in pairwise(Counter(parts).items()):
            self.between += [(later, (later - sooner) / (count * each))] * count

    def describe(self, begins: float, seconds: float) -> dict[str, Any]:
        """Return the figures of a period, for JSON. Times are in milliseconds."""

        def inside(values: Sequence[tuple[float, float]]) -> list[float]:
            return sorted(value for time, value in values if begins <= time < begins + seconds)

        def quantiles(values: Sequence[tuple[float, float]]) -> dict[str, float | None]:
            ordered = inside(values)
            found = {name: milliseconds(at(share, ordered)) for name, share in PERCENTILES.items()}
            mean = sum(ordered) / len(ordered) if ordered else None
            return {**found, "mean": milliseconds(mean)}

        period = max(seconds, 1e-9)
        return {
            "tokens_per_second": round(sum(inside(self.tokens)) / period, 1),
            "prompt_tokens_per_second": round(sum(inside(self.prompt_tokens)) / period, 1),
            "first_token_ms": quantiles(self.first),
            "between_tokens_ms": quantiles(self.between),
        }


@asynccontextmanager
async def chat_target(
    url: str, model: str, options: ChatOptions, *, callers: int, key: str | None
) -> AsyncIterator[tuple[Send, Streams]]:
    """Connect to a server, and send one request. Raises TargetUnusable."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": options.prompt}],
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    path, streams = f"{url.rstrip('/')}{PATH}", Streams()
    headers = {"content-type": "application/json"}
    async with open_clients(headers, callers=callers, key=key) as clients:

        async def send(caller: int) -> str:
            began = perf_counter()
            try:
                async with clients[caller].stream("POST", path, content=body) as response:
                    if response.status_code != httpx.codes.OK:
                        return await _refusal(response)
                    parts, usage, problem = await read_answer(response)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return f"{type(error).__name__}: {error}".removesuffix(": ")
            if not problem:
                streams.add(began, parts, usage)
            return problem

        if problem := await send(0):
            raise TargetUnusable(f"{url} does not answer a chat with {model}: {problem}")
        yield send, streams


class ReadClock:
    """Gives all events of one read the same time. A read takes a turn of the event loop."""

    def __init__(self) -> None:
        self._time: float | None = None

    def now(self) -> float:
        """Return the time of the current turn's first call."""
        if self._time is None:
            self._time = perf_counter()
            asyncio.get_running_loop().call_soon(self._end_turn)
        return self._time

    def _end_turn(self) -> None:
        self._time = None


async def read_answer(response: httpx.Response) -> tuple[list[float], dict[str, int], str]:
    """Return the times of an answer's parts, its tokens, and the reason if it was cut, else ""."""
    parts: list[float] = []
    clock = ReadClock()
    usage: dict[str, int] = {}
    finished = False
    async for line in response.aiter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            return parts, usage, f"cut: {event['error'].get('message', '')}"
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            finished = finished or choice.get("finish_reason") is not None
            if (choice.get("delta") or {}).get("content"):
                parts.append(clock.now())
    return parts, usage, "" if finished else "cut: the connection ended"


async def _refusal(response: httpx.Response) -> str:
    text = (await response.aread()).decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = text[:200]
    return f"{response.status_code} {message}"
