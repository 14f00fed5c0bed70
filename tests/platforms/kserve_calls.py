"""KServe's clients ask for one model over V1, V2 and gRPC. A test runs this in .venv-clients.

`python kserve_calls.py URL ADDRESS MODEL` prints the answers as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.inference_client import InferenceGRPCClient

FLOWER = [5.1, 3.5, 1.4, 0.2]


async def ask(url: str, address: str, model: str) -> dict[str, Any]:
    """Return the answers of all three clients."""
    v1 = InferenceRESTClient(RESTConfig(protocol="v1"))
    v2 = InferenceRESTClient(RESTConfig(protocol="v2"))
    tensor = InferInput("features", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([FLOWER], np.float32))
    predicted = await v1.infer(url, {"instances": [FLOWER]}, model_name=model)
    inferred = await v2.infer(url, InferRequest(model, [tensor]), model_name=model)
    async with InferenceGRPCClient(address) as grpc:
        called = await grpc.infer(InferRequest(model, [tensor]))
        grpc_ready = await grpc.is_model_ready(model)
    answers = {
        "v1 live": await v1.is_server_live(url),
        "v1 ready": await v1.is_model_ready(url, model),
        "v1": predicted["predictions"][0]["label"],
        "v2 ready": await v2.is_model_ready(url, model),
        "v2": inferred.outputs[0].as_numpy().tolist(),
        "grpc ready": grpc_ready,
        "grpc": called.outputs[0].as_numpy().tolist(),
    }
    await v1.close()
    await v2.close()
    return answers


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(*sys.argv[1:4]))))  # noqa: T201
