"""Requests to a language model that are refused, and what OpenAI's client makes of them.

Each has the route, and what differs from a request that is answered. The client's exception is
named without `Error`; `param` and `code` are those of the error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

BAD, MISSING = "BadRequest", "NotFound"


class Wrong(NamedTuple):
    """A request that is refused."""

    route: str
    changes: dict[str, Any]
    exception: str
    param: str | None
    code: str | None


def chat(param: str | None, code: str | None, exception: str = BAD, **changes: Any) -> Wrong:
    """A chat with these changes."""
    return Wrong("chat", changes, exception, param, code)


def text(param: str | None, code: str | None, exception: str = BAD, **changes: Any) -> Wrong:
    """A completion with these changes."""
    return Wrong("text", changes, exception, param, code)


def nested(depth: int) -> dict[str, Any]:
    """A schema of objects in objects."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def says(role: str, content: Any, **more: Any) -> list[dict[str, Any]]:
    """One message."""
    return [{"role": role, "content": content, **more}]


IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]
TOOL = {"type": "function", "function": {"name": "look"}}
NAMED = {"type": "function", "function": {"name": "hear"}}
TYPE, VALUE, LEFT_OUT = "invalid_type", "invalid_value", "missing_required_parameter"
UNKNOWN, UNSUPPORTED = "unknown_parameter", "unsupported_parameter"

WRONG = {
    "an unknown model": chat("model", "model_not_found", MISSING, model="nobody"),
    "a model that is not a text": chat("model", TYPE, model=5),
    "no messages": chat("messages", LEFT_OUT, messages=None),
    "an empty list of messages": chat("messages", VALUE, messages=[]),
    "messages that are a text": chat("messages", TYPE, messages="hi"),
    "a message that is a text": chat("messages[0]", TYPE, messages=["hi"]),
    "an unknown role": chat("messages[0].role", VALUE, messages=says("robot", "hi")),
    "no role": chat("messages[0].role", LEFT_OUT, messages=[{"content": "hi"}]),
    "no content": chat("messages[0].content", LEFT_OUT, messages=says("user", None)),
    "a number as content": chat("messages[0].content", TYPE, messages=says("user", 5)),
    "a picture": chat("messages[0].content[0].type", UNSUPPORTED, messages=says("user", IMAGE)),
    "a tool's answer to no call": chat(
        "messages[0].tool_call_id", LEFT_OUT, messages=says("tool", "seen")
    ),
    "a prompt longer than the context": chat(
        "messages", "context_length_exceeded", messages=says("user", "a " * 5000)
    ),
    "10,000 answers": chat("n", VALUE, n=10_000),
    "a negative number of answers": chat("n", VALUE, n=-1),
    "a hot temperature": chat("temperature", VALUE, temperature=2.5),
    "a temperature in words": chat("temperature", TYPE, temperature="hot"),
    "no probability": chat("top_p", VALUE, top_p=0),
    "half a token": chat("top_k", VALUE, top_k=0.5),
    "too large a penalty": chat("presence_penalty", VALUE, presence_penalty=3),
    "a seed in words": chat("seed", TYPE, seed="x"),
    "no new tokens": chat("max_tokens", VALUE, max_tokens=0),
    "more tokens than the context": chat(
        "max_completion_tokens", VALUE, max_completion_tokens=10**7
    ),
    "1 MB of stop strings": chat("stop", VALUE, stop=["x" * 1024] * 1024),
    "an empty stop string": chat("stop", VALUE, stop=[""]),
    "a bias for a word": chat("logit_bias", VALUE, logit_bias={"the": 1}),
    "a bias without bounds": chat("logit_bias", VALUE, logit_bias={"1": 1000}),
    "top_logprobs alone": chat("top_logprobs", VALUE, top_logprobs=2),
    "stream options without a stream": chat(
        "stream_options", VALUE, stream=False, stream_options={"include_usage": True}
    ),
    "a stream in words": chat("stream", TYPE, stream="yes"),
    "an unknown form": chat("response_format.type", VALUE, response_format={"type": "xml"}),
    "a schema of 300 levels": chat(
        "response_format.json_schema.schema",
        VALUE,
        response_format={"type": "json_schema", "json_schema": {"schema": nested(300)}},
    ),
    "a form without its schema": chat(
        "response_format.json_schema", LEFT_OUT, response_format={"type": "json_schema"}
    ),
    "a tool without a name": chat(
        "tools[0].function.name", LEFT_OUT, tools=[{"type": "function", "function": {}}]
    ),
    "a choice without tools": chat("tool_choice", VALUE, tool_choice="required"),
    "a choice of an unknown tool": chat(
        "tool_choice.function.name", VALUE, tools=[TOOL], tool_choice=NAMED
    ),
    "a key of the old API": chat("functions", UNSUPPORTED, functions=[]),
    "a key that would change the answer": chat("guided_json", UNSUPPORTED, guided_json={}),
    "a key with a typing error": chat("temprature", UNKNOWN, temprature=1),
    "no prompt": text("prompt", LEFT_OUT, prompt=None),
    "an empty list of prompts": text("prompt", VALUE, prompt=[]),
    "a prompt that is an object": text("prompt", TYPE, prompt={}),
    "a prompt of mixed types": text("prompt[1]", TYPE, prompt=["a", 1]),
    "negative token ids": text("prompt", VALUE, prompt=[-1]),
    "1,000 prompts": text("prompt", VALUE, prompt=["a"] * 1000),
    "the best of several": text("best_of", UNSUPPORTED, best_of=4),
    "a suffix": text("suffix", UNSUPPORTED, suffix="end"),
    "an echo with logprobs": text("echo", UNSUPPORTED, echo=True, logprobs=1),
    "messages for a completion": text("messages", UNSUPPORTED, messages=[]),
    "messages instead of a prompt": text(
        "messages", UNSUPPORTED, prompt=None, messages=says("user", "hi")
    ),
    "a prompt instead of messages": chat("prompt", UNSUPPORTED, messages=None, prompt="hi"),
}
