"""KServe's REST client asks a server all it can. A test runs this in .venv-clients.

`python kserve_calls.py URL` prints what came back as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]], np.float32)
TEXTS = np.array([["cat"], ["žluť"], [""]], np.object_)


async def main(url: str) -> dict[str, Any]:
    """Ask, and tell."""
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))

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
        """What the client makes of a mistake."""
        try:
            await client.infer(url, {"inputs": []}, model_name="iris")
        except httpx.HTTPStatusError as error:
            return {"status": error.response.status_code, "says": str(error)}
        return {}

    ways = [(sent, answered) for sent in (True, False) for answered in (True, False)]
    halves = np.array([[1.5, 2, 0.25]], np.float16)
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
        "halves": await ask("fp16", "x", "FP16", halves, sent=True, answered=True),
        "one output": await ask_for_one(),
        "refused": await refused(),
    }
    await client.close()
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1])), default=bytes.decode))  # noqa: T201
