"""A bare ASGI application: no framework, no validation, one run a request. MODEL names the file."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import orjson

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

session = ort.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
inputs = {one.name: kinds[one.type] for one in session.get_inputs()}


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer the tutorials' form to POST, and 200 to all else."""
    answer = b"{}"
    if scope["method"] == "POST":
        parts = []
        more = True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        data = orjson.loads(b"".join(parts))
        if len(inputs) == 1:
            (name, dtype) = next(iter(inputs.items()))
            feeds = {name: np.array(data["input"], dtype=dtype)}
        else:
            feeds = {name: np.array(data[name], dtype=dtype) for name, dtype in inputs.items()}
        output = np.ascontiguousarray(session.run(None, feeds)[0])
        answer = orjson.dumps({"prediction": output}, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(answer)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
