"""`/v1/completions` over a model that repeats its prompt."""

from __future__ import annotations

from tests.http.openai.conftest import Caller, events_of


async def test_a_prompt_is_continued(caller: Caller) -> None:
    """The text, the reason of the end and the tokens are where clients read them."""
    response = await caller.complete("one two")
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["object"] == "text_completion"
    choice = {"text": "one two", "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert answer["choices"] == [choice]
    assert answer["usage"]["total_tokens"] == 4
    assert caller.aviary.parrot.said[0].request.max_tokens == 16


async def test_several_prompts_are_one_request(caller: Caller) -> None:
    """Their choices are in order, n for each; the tokens are summed; the model counts one call."""
    response = await caller.complete(["one two", "three"], n=2, echo=True)
    answer = response.json()
    assert [choice["text"] for choice in answer["choices"]] == [
        *["one twoone two"] * 2,
        *["threethree"] * 2,
    ]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 6
    assert len(caller.aviary.parrot.said) == 2
    assert caller.aviary.parrot.leases.count == 0


async def test_token_ids_are_prompts(caller: Caller) -> None:
    """A list of ids is one prompt; a list of such lists is several."""
    one = await caller.complete([5, 6])
    assert one.json()["choices"][0]["text"] == "5 6"
    two = await caller.complete([[5], [6, 7]])
    assert [choice["text"] for choice in two.json()["choices"]] == ["5", "6 7"]


async def test_a_stream_of_several_prompts(caller: Caller) -> None:
    """Each choice has its own events; the text begins with the prompt if asked."""
    response = await caller.complete(["one two", "three"], stream=True, echo=True)
    chunks = events_of(response)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "one twoone two", 1: "threethree"}
    finished = [one for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert sorted(one["index"] for one in finished) == [0, 1]


async def test_logprobs_of_a_text(caller: Caller) -> None:
    """Tokens, logprobs and offsets are lists of one length."""
    answer = (await caller.complete("one two", logprobs=1)).json()
    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0, 3],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["one", " two"],
        "top_logprobs": [{"one": -0.5}, {" two": -0.5}],
    }
    chunks = events_of(await caller.complete("one two", logprobs=0, stream=True))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0], [3]]


async def test_one_wrong_prompt_fails_all(caller: Caller) -> None:
    """Nothing is queued then."""
    response = await caller.complete(["one", "a " * 64])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert caller.aviary.parrot.said == []


async def test_more_token_ids_than_any_context_are_refused(caller: Caller) -> None:
    """They are refused while they are read."""
    response = await caller.complete([1] * 600_000)
    assert response.status_code == 400
    assert "more than 524288 elements" in response.json()["error"]["message"]
