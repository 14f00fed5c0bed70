"""`/v1/chat/completions` over a model that repeats the last message."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from cohort.errors import InvalidInput
from tests.http.openai.conftest import Caller, events_of
from tests.parrot import Parrot

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


async def test_a_chat_is_answered_whole(caller: Caller) -> None:
    """The message, the reason of the end and the tokens are where clients read them."""
    response = await caller.chat("one two three")
    assert response.status_code == 200, response.text
    assert response.headers["x-model-version"] == "1"
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "m"
    assert answer["id"].startswith("chatcmpl-")
    message = {"role": "assistant", "content": "one two three", "refusal": None}
    assert answer["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_stream_has_the_role_the_text_the_end_and_the_usage(caller: Caller) -> None:
    """Each choice has its own deltas; the last chunk has no choices but the tokens."""
    response = await caller.chat(
        "one two", n=2, stream=True, stream_options={"include_usage": True}
    )
    assert "no-cache" in response.headers["cache-control"]
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-model-version"] == "1"
    *chunks, last = events_of(response)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk["usage"] is None for chunk in chunks)
    for index in range(2):
        own = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(one["delta"].get("content", "") for one in own) == "one two"
        assert [one["finish_reason"] for one in own] == [None, None, None, "stop"]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 2 + 4


async def test_usage_is_only_sent_if_it_was_asked_for(caller: Caller) -> None:
    """Without the option no chunk has the key."""
    chunks = events_of(await caller.chat("one", stream=True))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_logprobs_are_reported_with_each_token(caller: Caller) -> None:
    """Whole answers and streams have the same."""
    whole = (await caller.chat("one two", logprobs=True, top_logprobs=1)).json()
    content = whole["choices"][0]["logprobs"]["content"]
    top = {"token": "one", "logprob": -0.5, "bytes": [111, 110, 101]}
    assert content[0] == {**top, "top_logprobs": [top]}
    streamed = events_of(await caller.chat("one two", logprobs=True, top_logprobs=1, stream=True))
    found: list[Any] = []
    for chunk in streamed:
        found += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    assert found == content


async def test_tool_calls_are_part_of_the_message(caller: Caller) -> None:
    """A call has an id, and the reason of the end is `tool_calls`."""
    (choice,) = (await caller.chat("now call:look", tools=TOOLS)).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "look", "arguments": "{}"}
    assert choice["message"]["content"] == "now"
    assert choice["finish_reason"] == "tool_calls"


async def test_tool_calls_of_a_stream_are_numbered(caller: Caller) -> None:
    """Each call comes in one delta."""
    response = await caller.chat("call:look then call:look", tools=TOOLS, stream=True)
    deltas = [chunk["choices"][0] for chunk in events_of(response)]
    calls = [call for one in deltas for call in one["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert "".join(one["delta"].get("content", "") for one in deltas) == " then"
    assert deltas[-1]["finish_reason"] == "tool_calls"


async def test_one_tool_call_at_a_time(caller: Caller) -> None:
    """With `parallel_tool_calls: false` only the first call is answered."""
    response = await caller.chat("call:look call:look", tools=TOOLS, parallel_tool_calls=False)
    assert len(response.json()["choices"][0]["message"]["tool_calls"]) == 1


async def test_a_tool_whose_schema_cannot_be_used_is_named(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form of the answer comes from the tools, so `param` is `tools`."""
    refused = Mock(side_effect=InvalidInput("the JSON schema cannot be used", "response_format"))
    monkeypatch.setattr(caller.aviary.parrot, "prepare", refused)
    response = await caller.chat("call:look", tools=TOOLS, tool_choice="required")
    assert response.json()["error"]["param"] == "tools"


async def test_a_tool_that_must_be_called_is_called(caller: Caller) -> None:
    """The answer has the form of its arguments, by a guide, and is a call."""
    named = {"type": "function", "function": {"name": "look"}}
    response = await caller.chat('{"at":1}', tools=TOOLS, tool_choice=named)
    (choice,) = response.json()["choices"]
    function = {"name": "look", "arguments": '{"at":1}'}
    assert choice["message"]["tool_calls"][0]["function"] == function
    assert choice["message"]["content"] is None
    sent = caller.aviary.parrot.said[0].request
    assert sent.guide is not None
    assert sent.guide.grammar == '{"type":"object"}'
    written = '{"name":"look","arguments":{"at":2}}'
    response = await caller.chat(written, tools=TOOLS, tool_choice="required")
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at":2}'}


async def test_options_reach_the_model(caller: Caller) -> None:
    """Options that are left out or null have the model's defaults."""
    await caller.chat(
        temperature=0,
        top_k=5,
        seed=7,
        top_p=None,
        logit_bias={"3": -100},
        stop=["a", "b"],
        max_completion_tokens=2,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
        chat_template_kwargs={"enable_thinking": False},
        user="ada",
        metadata={"a": "b"},
    )
    request = caller.aviary.parrot.said[0].request
    assert request.max_tokens == 2
    assert request.stop == ("a", "b")
    assert request.sampling.temperature == 0
    assert (request.sampling.top_k, request.sampling.seed) == (5, 7)
    assert request.sampling.top_p == Parrot.sampling.top_p
    assert request.sampling.logit_bias == {3: -100.0}
    assert request.guide is not None
    assert request.guide.kind == "json_schema"
    assert request.prompt.options == {"enable_thinking": False}  # type: ignore[union-attr]


async def test_messages_reach_the_template_as_text(caller: Caller) -> None:
    """Parts are joined, a developer is the system, and earlier calls have objects as arguments."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call], "audio": None},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]
    body = {"model": "m", "messages": messages}
    response = await caller.client.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "seen"
    sent = caller.aviary.parrot.said[0].request.prompt.messages  # type: ignore[union-attr]
    assert sent[0] == {"role": "system", "content": "be brief"}
    assert sent[1]["content"] == "a\nb"
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


async def test_a_long_chat_is_read_on_a_thread(caller: Caller) -> None:
    """It is answered as any other, also if it is cut into pieces for the parser."""
    messages = [{"role": "user", "content": "x" * 300} for _ in range(1500)]
    messages.append({"role": "user", "content": "last"})
    response = await caller.client.post(
        "/v1/chat/completions", json={"model": "m", "messages": messages}
    )
    assert response.json()["choices"][0]["message"]["content"] == "last"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_without_a_template_is_told(caller: Caller, stream: bool) -> None:
    """A model without a chat template refuses chats; a stream is refused with a status."""
    caller.aviary.parrot.chats = False
    response = await caller.chat("hi", stream=stream)
    assert response.status_code == 400
    assert "has no chat template; use /v1/completions" in response.json()["error"]["message"]
