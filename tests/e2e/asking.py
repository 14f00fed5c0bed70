"""Requests over each API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np

from cohort.tensors import Arrays
from tests.chaos.lengths import LONG
from tests.e2e.processes import Cohort
from tests.rpc.client import DATATYPES, Client, connected
from tests.waiting import PATIENCE, until

CALLERS = 16

ROUNDS = 20 if LONG else 4

APIS = ("predict", "V1", "V2", "gRPC")

Ask = Callable[[str, Arrays], Awaitable[Mapping[str, Any]]]


@asynccontextmanager
async def asking(server: Cohort, api: str) -> AsyncIterator[Ask]:
    """Yield a function that sends a request over an API and returns the outputs by name."""
    if api == "gRPC":
        async with connected(server.grpc) as client:
            yield _over_grpc(client)
    else:
        limits = httpx.Limits(max_connections=CALLERS)
        async with httpx.AsyncClient(
            base_url=server.url, timeout=PATIENCE, limits=limits
        ) as client:
            yield {"predict": _by_predict, "V1": _over_v1, "V2": _over_v2}[api](client)


def _over_grpc(client: Client) -> Ask:
    return client.infer


def _by_predict(client: httpx.AsyncClient) -> Ask:
    async def ask(model: str, inputs: Arrays) -> Mapping[str, Any]:
        body = {"inputs": {name: array.tolist() for name, array in inputs.items()}}
        answer = await client.post(f"/models/{model}/predict", json=body)
        assert answer.status_code == 200, answer.text
        found: Mapping[str, Any] = answer.json()["outputs"]
        return found

    return ask


def _over_v1(client: httpx.AsyncClient) -> Ask:
    async def ask(model: str, inputs: Arrays) -> Mapping[str, Any]:
        body = {"inputs": {name: array.tolist() for name, array in inputs.items()}}
        answer = await client.post(f"/v1/models/{model}:predict", json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()["outputs"]
        return found if isinstance(found, dict) else {"": found}

    return ask


def _over_v2(client: httpx.AsyncClient) -> Ask:
    async def ask(model: str, inputs: Arrays) -> Mapping[str, Any]:
        tensors = [
            {
                "name": name,
                "datatype": DATATYPES[str(array.dtype)],
                "shape": list(array.shape),
                "data": array.ravel().tolist(),
            }
            for name, array in inputs.items()
        ]
        answer = await client.post(f"/v2/models/{model}/infer", json={"inputs": tensors})
        assert answer.status_code == 200, answer.text
        found = answer.json()["outputs"]
        return {one["name"]: np.reshape(one["data"], one["shape"]) for one in found}

    return ask


async def described(server: Cohort, model: str) -> Mapping[str, Any]:
    """Return the description of a model's batching, once it was measured."""

    def batching() -> Mapping[str, Any]:
        found: Mapping[str, Any] = server.get(f"/models/{model}").json()["versions"][0]["batching"]
        return found

    await until(lambda: "measured" not in batching()["reason"])
    return batching()
