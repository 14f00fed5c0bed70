"""KServe's REST and gRPC clients ask a server all they can. A test runs this in .venv-clients.

`python kserve_calls.py URL ADDRESS` prints what came back as one JSON object; ADDRESS is gRPC's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.inference_client import InferenceGRPCClient
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]], np.float32)
TEXTS = np.array([["cat"], ["žluť"], [""]], np.object_)
HALVES = np.array([[1.5, 2, 0.25]], np.float16)


async def ask_rest(url: str) -> dict[str, Any]:
    """Ask over HTTP and return the answers."""
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=120))

    async def ask(
        model: str, name: str, datatype: str, array: Any, *, sent: bool, answered: bool
    ) -> dict[str, Any]:
        """The answer's id and outputs, for an array `sent` and `answered` in binary or not."""
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=sent)
        parameters = {"binary_data_output": answered}
        request = InferRequest(model, [tensor], request_id="k-1", parameters=parameters)
        answer = await client.infer(url, request, model_name=model)
        outputs = {one.name: one.as_numpy().tolist() for one in answer.outputs}
        return {"id": answer.id, "outputs": outputs}

    async def ask_for_one() -> list[str]:
        """The names of the outputs that come where one was asked for."""
        tensor = InferInput("features", [2, 4], "FP32")
        tensor.set_data_from_numpy(FLOWERS)
        asked = [RequestedOutput("label", {"binary_data": True})]
        request = InferRequest("iris", [tensor], request_outputs=asked)
        answer = await client.infer(url, request, model_name="iris")
        return [one.name for one in answer.outputs]

    async def refused() -> dict[str, Any]:
        """Return the client's report of a mistake."""
        try:
            await client.infer(url, {"inputs": []}, model_name="iris")
        except httpx.HTTPStatusError as error:
            return {"status": error.response.status_code, "says": str(error)}
        return {}

    ways = [(sent, answered) for sent in (True, False) for answered in (True, False)]
    told = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model ready": [await client.is_model_ready(url, name) for name in ("iris", "nobody")],
        "iris": [
            await ask("iris", "features", "FP32", FLOWERS, sent=sent, answered=answered)
            for sent, answered in ways
        ],
        "texts": [
            await ask("strings", "text", "BYTES", TEXTS, sent=sent, answered=answered)
            for sent, answered in ways
        ],
        "halves": await ask("fp16", "x", "FP16", HALVES, sent=True, answered=True),
        "one output": await ask_for_one(),
        "refused": await refused(),
    }
    await client.close()
    return told


async def ask_grpc(address: str) -> dict[str, Any]:
    """Ask over gRPC and return the answers."""

    async def ask(
        model: str, name: str, datatype: str, array: Any, *, raw: bool, **fields: Any
    ) -> dict[str, Any]:
        """The answer to an array sent as raw bytes or as typed values."""
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=raw)
        answer = await client.infer(InferRequest(model, [tensor], request_id="k-1", **fields))
        outputs = {one.name: one.as_numpy().tolist() for one in answer.outputs}
        return {"id": answer.id, "version": answer.model_version, "outputs": outputs}

    async def ask_values(*, typed: bool) -> list[Any]:
        """Return the first output's `data`, with or without a request for typed answers."""
        tensor = InferInput("features", [2, 4], "FP32")
        tensor.set_data_from_numpy(FLOWERS, binary_data=False)
        parameters = {"binary_data_output": False} if typed else None
        answer = await client.infer(InferRequest("iris", [tensor], parameters=parameters))
        return list(answer.outputs[0].data)

    async def refused(array: Any, **fields: Any) -> dict[str, Any]:
        """Return the client's report of a mistake."""
        try:
            await ask("iris", "features", "FP32", array, raw=True, **fields)
        except grpc.RpcError as error:
            return {"status": error.code().name, "says": error.details()}
        return {}

    async with InferenceGRPCClient(address, timeout=120) as client:
        # The client has no method for metadata; KServe's generated code does.
        async with grpc.aio.insecure_channel(address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            server = await stub.ServerMetadata(messages.ServerMetadataRequest())
            model = await stub.ModelMetadata(messages.ModelMetadataRequest(name="iris"))
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": [await client.is_model_ready(name) for name in ("iris", "nobody")],
            "server": server.name,
            "model": {
                "name": model.name,
                "versions": list(model.versions),
                "inputs": [[one.name, one.datatype, list(one.shape)] for one in model.inputs],
                "outputs": [[one.name, one.datatype, list(one.shape)] for one in model.outputs],
            },
            "iris": [
                await ask("iris", "features", "FP32", FLOWERS, raw=raw) for raw in (True, False)
            ],
            "values": [await ask_values(typed=typed) for typed in (True, False)],
            "texts": [
                await ask("strings", "text", "BYTES", TEXTS, raw=raw) for raw in (True, False)
            ],
            "halves": await ask("fp16", "x", "FP16", HALVES, raw=True),
            "one output": await ask(
                "iris",
                "features",
                "FP32",
                FLOWERS,
                raw=True,
                model_version="1",
                request_outputs=[RequestedOutput("label", {"binary_data": True})],
                parameters={"timeout": 600_000_000},
            ),
            "refused": await refused(FLOWERS[:, :3]),
            "no version": await refused(FLOWERS, model_version="9"),
        }


if __name__ == "__main__":
    told = {
        "rest": asyncio.run(ask_rest(sys.argv[1])),
        "grpc": asyncio.run(ask_grpc(sys.argv[2])),
    }
    print(json.dumps(told, default=bytes.decode))  # noqa: T201
