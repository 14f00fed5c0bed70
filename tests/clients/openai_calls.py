"""OpenAI's client, LiteLLM and LangChain ask a server all they can, in .venv-clients.

`python openai_calls.py URL MODEL EMBEDDINGS ENCODER` reads wrong requests from its input, as JSON,
and prints what came back as one JSON object. The model repeats the last message, and calls a tool
for `call:NAME`. EMBEDDINGS is the address of the server of the encoder.
`python openai_calls.py URL MODEL any` prints what each client gets from any model.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one

import litellm
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

KEY = "any"


class City(BaseModel):
    """The form of an answer."""

    name: str
    people: int


TOWN = '{"name":"Ulm","people":126000}'
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def says(text: str) -> Any:
    """One message of a user."""
    return [{"role": "user", "content": text}]


def ask(client: openai.OpenAI, model: str) -> dict[str, Any]:
    """Ask with the client that waits."""
    whole = client.chat.completions.create(model=model, messages=says("one two"), seed=1)
    raw = client.chat.completions.with_raw_response.create(model=model, messages=says("one"))
    stream = client.chat.completions.create(
        model=model, messages=says("one two"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    called = client.chat.completions.create(model=model, messages=says("call:look"), tools=TOOLS)
    calls = called.choices[0].message.tool_calls or []
    answered: Any = [
        *says("call:look"),
        called.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": calls[0].id, "content": "seen it"},
    ]
    after = client.chat.completions.create(model=model, messages=answered, tools=TOOLS)
    parsed = client.chat.completions.parse(model=model, messages=says(TOWN), response_format=City)
    with client.chat.completions.stream(
        model=model, messages=says(TOWN), response_format=City
    ) as helped:
        final = helped.get_final_completion()
    texts = client.completions.create(model=model, prompt=["a b", "c"], max_tokens=5, logprobs=1)
    listed = [one.id for one in client.models.list()]
    return {
        "whole": whole.choices[0].message.content,
        "tokens": whole.usage.total_tokens if whole.usage else None,
        "headers": [raw.headers["x-model-version"], raw.http_response.status_code],
        "stream": "".join(one.choices[0].delta.content or "" for one in chunks if one.choices),
        "stream tokens": chunks[-1].usage.completion_tokens if chunks[-1].usage else None,
        "calls": [[one.function.name, one.function.arguments] for one in calls],
        "finish": called.choices[0].finish_reason,
        "after": after.choices[0].message.content,
        "parsed": parsed.choices[0].message.parsed.model_dump(),
        "stream parsed": final.choices[0].message.parsed.model_dump(),
        "texts": [one.text for one in texts.choices],
        "listed": listed,
        "retrieved": client.models.retrieve(model).id,
    }


async def ask_async(url: str, model: str) -> dict[str, Any]:
    """Ask with the client of coroutines, many at once."""
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model=model, messages=says(f"number {number}"), stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return {"many": await asyncio.gather(*(one(number) for number in range(8)))}


def ask_wrongly(client: openai.OpenAI, wrong: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the exceptions of wrong requests."""
    found = {}
    for name, (route, changes) in wrong.items():
        chat = {"model": model, "messages": says("hi")}
        body = chat if route == "chat" else {"model": model, "prompt": "hi"}
        path = "/chat/completions" if route == "chat" else "/completions"
        try:
            client.post(path, body={**body, **changes}, cast_to=object)
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.param, error.code]
        else:
            found[name] = ["answered", None, None]
    try:
        client.models.retrieve("nobody")
    except openai.NotFoundError as error:
        found["retrieved"] = [error.param, error.code]
    return found


def ask_litellm(url: str, model: str) -> dict[str, Any]:
    """Ask with LiteLLM."""
    options: Any = {"model": f"openai/{model}", "api_base": url, "api_key": KEY}
    whole = litellm.completion(messages=says("one two"), **options)
    stream = litellm.completion(messages=says("one two"), stream=True, **options)
    called = litellm.completion(messages=says("call:look"), tools=TOOLS, **options)
    try:
        litellm.completion(messages=says("a " * 5000), **options)
        refused = "answered"
    except litellm.ContextWindowExceededError as error:
        refused = type(error).__name__
    return {
        "whole": whole.choices[0].message.content,
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in stream),
        "calls": [one.function.name for one in called.choices[0].message.tool_calls],
        "refused": refused,
    }


@tool  # type: ignore[untyped-decorator]
def look(at: str = "") -> str:
    """Look at something."""
    return at


def ask_langchain(url: str, model: str) -> dict[str, Any]:
    """Ask with LangChain."""
    chat = ChatOpenAI(model=model, base_url=url, api_key=KEY)
    shaped = chat.with_structured_output(City, method="json_schema")
    called = chat.bind_tools([look]).invoke("call:look")
    forced = chat.with_structured_output(City, method="function_calling")
    return {
        "whole": chat.invoke("one two").content,
        "stream": "".join(str(chunk.content) for chunk in chat.stream("one two")),
        "calls": [one["name"] for one in called.tool_calls],
        "shaped": shaped.invoke(TOWN).model_dump(),
        "forced": forced.invoke(TOWN).model_dump(),
        "text": OpenAI(model=model, base_url=url, api_key=KEY, max_tokens=9).invoke("one two"),
    }


def embed(url: str, model: str) -> dict[str, Any]:
    """Return the vectors of texts, by each client."""
    texts = ["good film", "bad"]
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    found = client.embeddings.create(model=model, input=texts)
    plain = client.embeddings.create(model=model, input=texts[0], encoding_format="float")
    try:
        client.embeddings.create(model=model, input=[4, 5])
        refused = "answered"
    except openai.BadRequestError as error:
        refused = str(error.param)
    options: Any = {"model": f"openai/{model}", "api_base": url, "api_key": KEY}
    lite = litellm.embedding(input=texts, **options)
    chain = OpenAIEmbeddings(
        model=model, base_url=url, api_key=KEY, check_embedding_ctx_length=False
    )
    return {
        "openai": [one.embedding for one in found.data],
        "plain": [one.embedding for one in plain.data],
        "tokens": [found.usage.prompt_tokens, found.usage.total_tokens],
        "refused": refused,
        "litellm": [one["embedding"] for one in lite.data],
        "langchain": chain.embed_documents(texts),
        "langchain query": chain.embed_query(texts[1]),
    }


class Mood(BaseModel):
    """A form that any model can fill."""

    happy: bool


def ask_in_all_ways(url: str, model: str) -> dict[str, Any]:
    """Ask any model the same with each client; the answers have the same text."""
    chosen: Any = {"temperature": 0, "max_tokens": 12}
    options: Any = {"model": model, "messages": says("hello"), **chosen}
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    stream = client.chat.completions.create(stream=True, **options)
    chat = ChatOpenAI(model=model, base_url=url, api_key=KEY, **chosen)
    light: Any = {**options, "model": f"openai/{model}", "api_base": url, "api_key": KEY}
    parsed = client.chat.completions.parse(
        model=model, messages=says("hello"), response_format=Mood, temperature=0
    )
    shaped = ChatOpenAI(model=model, base_url=url, api_key=KEY).with_structured_output(
        Mood, method="json_schema"
    )
    return {
        "texts": [
            client.chat.completions.create(**options).choices[0].message.content,
            "".join(chunk.choices[0].delta.content or "" for chunk in stream),
            litellm.completion(**light).choices[0].message.content,
            chat.invoke("hello").content,
            "".join(str(chunk.content) for chunk in chat.stream("hello")),
        ],
        "parsed": parsed.choices[0].message.parsed.model_dump(),
        "shaped": shaped.invoke("hello").model_dump(),
    }


def main() -> None:
    """Print all answers."""
    url, model = sys.argv[1] + "/v1", sys.argv[2]
    if sys.argv[3:] == ["any"]:
        print(json.dumps(ask_in_all_ways(url, model)))  # noqa: T201
        return
    wrong = json.load(sys.stdin)
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    answers = {
        "openai": ask(client, model),
        "async": asyncio.run(ask_async(url, model)),
        "wrong": ask_wrongly(client, wrong, model),
        "litellm": ask_litellm(url, model),
        "langchain": ask_langchain(url, model),
        "embeddings": embed(sys.argv[3] + "/v1", sys.argv[4]),
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
