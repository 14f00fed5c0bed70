"""The generate extension of V2, over real sockets, with a parrot for a language model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.errors import NotReady
from cohort.rollouts import parse_rollouts
from tests.aviary import Aviary, listening, open_aviary
from tests.waiting import PATIENCE, iterations, until

GENERATE, STREAM = "/v2/models/m/generate", "/v2/models/m/generate_stream"


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    """A server of one parrot."""
    async with open_aviary(tmp_path) as opened, listening(opened):
        yield opened


@pytest.fixture
async def client(aviary: Aviary) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server."""
    async with httpx.AsyncClient(base_url=aviary.url, timeout=PATIENCE) as client:
        yield client


def events(text: str) -> list[dict[str, Any]]:
    """Return the documents of server-sent events."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


async def test_the_answer_is_the_new_text(client: httpx.AsyncClient) -> None:
    """`generate` answers one document, without the prompt."""
    answer = await client.post(GENERATE, json={"text_input": "one two", "id": "a"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "model_name": "m", "model_version": "1", "id": "a", "text_output": "one two",
    }  # fmt: skip


async def test_a_language_model_has_a_config(client: httpx.AsyncClient) -> None:
    """Triton's clients read it before they send text."""
    answer = await client.get("/v2/models/m/config")
    assert answer.status_code == 200, answer.text
    assert answer.json()["input"][0]["name"] == "text_input"


async def test_a_stream_has_an_event_for_each_piece(client: httpx.AsyncClient) -> None:
    """Each event has new text; only the last one is done."""
    answer = await client.post(STREAM, json={"text_input": "one two three"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-model-version"] == "1"
    found = events(answer.text)
    assert [one["text_output"] for one in found] == ["one", " two", " three"]
    assert [one["done"] for one in found] == [False, False, True]
    assert {(one["model_name"], one["model_version"]) for one in found} == {("m", "1")}


async def test_parameters_may_be_beside_the_text(client: httpx.AsyncClient) -> None:
    """Sampling parameters have one meaning in each place where clients write them."""
    for options in (
        {"parameters": {"max_tokens": 2}},
        {"max_tokens": 2},
        {"sampling_parameters": '{"max_tokens": 2}'},
        {"parameters": {"sampling_parameters": {"max_tokens": "2"}, "max_tokens": None}},
    ):
        answer = await client.post(GENERATE, json={"text_input": "one two three", **options})
        assert answer.json()["text_output"] == "one two", options


async def test_all_sampling_parameters_reach_the_engine(
    aviary: Aviary, client: httpx.AsyncClient
) -> None:
    """The engine gets the request as the caller wrote it."""
    sent = {"temperature": 0, "top_k": 3, "stop_words": ["x"], "details": True, "ignore_eos": True}
    await client.post(GENERATE, json={"text_input": "one", "parameters": sent})
    request = aviary.parrot.said[0].request
    assert (request.sampling.temperature, request.sampling.top_k) == (0.0, 3)
    assert (request.stop, request.logprobs, request.ignore_end) == (("x",), 0, True)


async def test_parameters_of_tritons_clients_are_accepted(client: httpx.AsyncClient) -> None:
    """Those of its TensorRT-LLM and vLLM backends that change no answer."""
    sent = {
        "text_input": "one two three", "max_tokens": 2, "bad_words": "", "stop_words": "",
        "pad_id": 2, "end_id": 2, "beam_width": 1, "length_penalty": 1.0, "min_length": "1",
        "repetition_penalty": 1.0, "random_seed": 7, "return_log_probs": False,
        "parameters": {"priority": 1, "sequence_id": 5, "timeout": 10**7},
        "sampling_parameters": '{"skip_special_tokens": true, "use_beam_search": false}',
    }  # fmt: skip
    answer = await client.post(GENERATE, json=sent)
    assert answer.json()["text_output"] == "one two", answer.text


async def test_the_sticky_parameter_of_a_rollout_is_known(
    aviary: Aviary, client: httpx.AsyncClient
) -> None:
    """Any name may keep callers on a variant, and a request may pin a version at the same time."""
    sent = {"text_input": "one", "customer": "c7"}
    assert (await client.post(GENERATE, json=sent)).status_code == 400
    text = "m: {variants: {a: {version: 1, weight: 1}}, sticky: {parameter: customer}}"
    aviary.plane._rollouts.apply(parse_rollouts(text, "rollouts.yaml"))
    for path in (GENERATE, "/v2/models/m/versions/1/generate"):
        assert (await client.post(path, json=sent)).status_code == 200


async def test_a_version_in_the_path_answers(client: httpx.AsyncClient) -> None:
    """A version that does not exist is refused."""
    path = "/v2/models/m/versions/{}/generate_stream"
    assert (await client.post(path.format(1), json={"text_input": "a"})).status_code == 200
    answer = await client.post(path.format(2), json={"text_input": "a"})
    assert (answer.status_code, answer.json()["code"]) == (404, "VersionNotFound")


async def test_the_prompt_is_repeated_if_asked_for(client: httpx.AsyncClient) -> None:
    """With `exclude_input_in_output` false, the text begins with the prompt."""
    sent = {"text_input": "a b", "parameters": {"exclude_input_in_output": False}}
    assert (await client.post(GENERATE, json=sent)).json()["text_output"] == "a ba b"
    found = events((await client.post(STREAM, json=sent)).text)
    assert "".join(one["text_output"] for one in found) == "a ba b"


async def test_a_stream_that_is_not_wanted_is_one_event(client: httpx.AsyncClient) -> None:
    """`generate_stream` with `stream` false answers the whole text in one event."""
    answer = await client.post(STREAM, json={"text_input": "a b", "stream": False})
    (found,) = events(answer.text)
    assert (found["text_output"], found["done"]) == ("a b", True)


async def test_details_have_the_reason_of_the_end(client: httpx.AsyncClient) -> None:
    """The reasons are those of KServe."""
    sent = {"text_input": "a b", "parameters": {"details": True}}
    details = (await client.post(GENERATE, json=sent)).json()["details"]
    assert details["finish_reason"] == "eos_token"
    assert [one["text"] for one in details["logprobs"]] == ["a", " b"]
    found = events((await client.post(STREAM, json=sent)).text)
    assert [one["details"].get("finish_reason") for one in found] == [None, "eos_token"]


WRONG: list[tuple[Any, str]] = [
    ({}, "text_input is missing"),
    ({"prompt": "a"}, "text_input is missing"),
    ({"text_input": ["a"]}, "text_input must be a string, got a list"),
    ({"text_input": "a", "parameters": 3}, "parameters must be a JSON object, got 3"),
    ({"text_input": "a", "temperature": -1}, "temperature must be a number from 0 to 2"),
    ({"text_input": "a", "stream": "yes"}, "stream must be true or false"),
    (
        {"text_input": "a", "top_k": 1, "parameters": {"top_k": 2}},
        "top_k has two values: in parameters and next to it",
    ),
    ({"text_input": "a", "sampling_parameters": "{"}, "sampling_parameters must be a JSON object"),
    (
        {"text_input": "a", "top_k": 1, "sampling_parameters": {"top_k": 2}},
        "top_k has two values: in sampling_parameters and next to it",
    ),
    ({"text_input": "a", "parameters": {"timeout": -1}}, "parameters.timeout must be"),
    ({"text_input": "a " * 64}, "this model's maximum context length is 64 tokens"),
    ({"text_input": "a", "n": 10_000}, "n must be 1 here"),
    (
        {"text_input": "a", "temprature": 1},
        "unknown parameter 'temprature'; did you mean 'temperature'?",
    ),
    (
        {"text_input": "a", "sampling_parameters": '{"max_token": 1}'},
        "unknown parameter 'max_token'; did you mean 'max_tokens'?",
    ),
    ({"text_input": "a", "min_length": 5}, "min_length must be 0 or 1 here, got 5"),
    ({"text_input": "a", "return_log_probs": True}, "return_log_probs must be false here"),
    ({"text_input": "a", "end_id": 7}, "end_id must be 2 for this model, got 7"),
    ({"text_input": "a", "end_id": [2]}, "end_id must be 2 for this model, got a list"),
    ([], "the body must be a JSON object"),
    ({"text_input": "a", "stop": ["a" * 2**19] * 2}, "stop has 1048576 characters"),
]


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_wrong_requests_are_refused_with_a_status(
    client: httpx.AsyncClient, path: str
) -> None:
    """A refused stream is an error in V2's form, not a stream."""
    for body, message in WRONG:
        answer = await client.post(path, json=body)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["code"] == "InvalidInput"
        assert answer.json()["error"].startswith(message)


async def test_an_unknown_model_is_not_found(client: httpx.AsyncClient) -> None:
    """It is 404, in both forms."""
    for verb in ("generate", "generate_stream"):
        answer = await client.post(f"/v2/models/none/{verb}", json={"text_input": "a"})
        assert (answer.status_code, answer.json()["code"]) == (404, "ModelNotFound")


async def test_an_error_before_the_first_word_has_a_status(
    aviary: Aviary, client: httpx.AsyncClient
) -> None:
    """A request that fails while it waits in the engine gets no stream."""
    aviary.parrot.closed = True
    answer = await client.post(STREAM, json={"text_input": "a b"})
    assert (answer.status_code, answer.json()["code"]) == (503, "NotReady")


async def test_an_error_after_the_first_word_is_an_event(
    aviary: Aviary, client: httpx.AsyncClient
) -> None:
    """The stream ends with the error, in V2's form."""
    aviary.parrot.pauses_after = 1
    async with client.stream("POST", STREAM, json={"text_input": "a b"}) as answer:
        text = answer.aiter_text()
        first = await anext(text)
        aviary.parrot.said[0].fail(NotReady("this version is being unloaded"))
        rest = "".join([part async for part in text])
    found = events(first + rest)
    assert [one.get("text_output") for one in found] == ["a", None]
    assert found[1] == {"error": "this version is being unloaded", "code": "NotReady"}
    assert aviary.parrot.leases.count == 0


async def test_a_client_who_leaves_ends_the_work(aviary: Aviary, client: httpx.AsyncClient) -> None:
    """The engine's work is cancelled at once, and the version is released."""
    aviary.parrot.pauses_after = 1
    for number, path in enumerate((STREAM, GENERATE)):
        sending = asyncio.create_task(client.post(path, json={"text_input": "a b"}))
        await until(lambda number=number: len(aviary.parrot.said) > number)  # type: ignore[misc]
        await iterations()
        sending.cancel()
        await until(lambda: aviary.parrot.said[-1].cancelled)
        assert aviary.parrot.leases.count == 0
        await until(lambda: aviary.plane.memory.used == 0)


async def test_a_stream_that_the_shutdown_cuts_ends_with_an_error(
    aviary: Aviary, client: httpx.AsyncClient
) -> None:
    """When the time to drain has ended, the last event is an error."""
    aviary.parrot.pauses_after = 1
    async with client.stream("POST", STREAM, json={"text_input": "a b"}) as answer:
        text = answer.aiter_text()
        await anext(text)
        aviary.server.should_exit = True
        rest = "".join([part async for part in text])
    assert events(rest) == [{"error": "the server is shutting down", "code": "NotReady"}]
    assert aviary.parrot.said[0].cancelled
