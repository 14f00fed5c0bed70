"""Requests for a model, in the forms that each server takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

Inputs = Mapping[str, NDArray[np.generic]]

DATATYPES = {"float32": "FP32", "int64": "INT64"}
DTYPES = {datatype: name for name, datatype in DATATYPES.items()}
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Workload:
    """A model and how it is asked. `weight` is about how many seconds a run takes."""

    name: str
    model: str
    binary: bool = False
    weight: float = 1e-5

    def requests(self) -> list[Inputs]:
        """One-row requests, the same on every day, asked for in turn."""
        random = np.random.default_rng(1)
        if self.model in {"resnet50", "means"}:
            return [{"image": random.random((1, 3, 224, 224), dtype=np.float32)} for _ in range(4)]
        if self.model == "encoder":
            lengths = random.integers(8, 129, 64)
            return [
                {
                    "input_ids": random.integers(1, 30522, (1, length)),
                    "attention_mask": np.ones((1, length), np.int64),
                }
                for length in lengths
            ]
        return [{"x": random.standard_normal((1, 10), dtype=np.float32)} for _ in range(16)]


WORKLOADS = (
    Workload("mlp", "mlp"),
    Workload("forest", "forest", weight=5e-5),
    Workload("resnet50-binary", "resnet50", binary=True, weight=0.025),
    Workload("resnet50-json", "resnet50", weight=0.03),
    Workload("encoder", "encoder", weight=0.008),
)
IMAGE = Workload("image", "means", weight=1e-4)
"""An image of 600 KB for a model that costs next to nothing."""


@dataclass(frozen=True)
class Call:
    """One HTTP request."""

    path: str
    headers: Mapping[str, str]
    body: bytes


Ask = Callable[[Workload, Inputs], Call]
Read = Callable[[Mapping[str, str], bytes], NDArray[np.generic]]


def ask_simply(_: Workload, inputs: Inputs) -> Call:
    """Return the tutorials' form: `{"input": …}`, or the inputs by name if there are several."""
    body = {"input": next(iter(inputs.values()))} if len(inputs) == 1 else inputs
    return Call("/predict", JSON, _dump(body))


def ask_cohort(workload: Workload, inputs: Inputs) -> Call:
    """Return the same bytes for one input, `{"inputs": …}` else, the binary form if asked."""
    if workload.binary:
        return ask_binary(workload, inputs)
    if len(inputs) == 1:
        return ask_simply(workload, inputs)
    return Call("/predict", JSON, _dump({"inputs": inputs}))


def ask_v2(workload: Workload, inputs: Inputs) -> Call:
    """Return the Open Inference Protocol in JSON, with flat data as its clients send it."""
    return Call(f"/v2/models/{workload.model}/infer", JSON, _dump({"inputs": [
        {**_head(name, array), "data": array.ravel()} for name, array in inputs.items()
    ]}))  # fmt: skip


def ask_binary(workload: Workload, inputs: Inputs) -> Call:
    """Return the Open Inference Protocol's binary extension, the answer binary too."""
    head = _dump({
        "inputs": [
            {**_head(name, array), "parameters": {"binary_data_size": array.nbytes}}
            for name, array in inputs.items()
        ],
        "parameters": {"binary_data_output": True},
    })  # fmt: skip
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    body = b"".join([head, *(array.tobytes() for array in inputs.values())])
    return Call(f"/v2/models/{workload.model}/infer", headers, body)


def read_answer(headers: Mapping[str, str], body: bytes) -> NDArray[np.generic]:
    """Return the first output, from whichever of the forms the answer is in."""
    size = headers.get("inference-header-content-length")
    document = orjson.loads(body[: int(size)] if size else body)
    if "prediction" in document:
        first = document["prediction"]
        return np.array(next(iter(first.values())) if isinstance(first, dict) else first)
    outputs = document["outputs"]
    if isinstance(outputs, dict):
        return np.array(next(iter(outputs.values())))
    output = outputs[0]
    dtype = DTYPES[output["datatype"]]
    flat = np.frombuffer(body, dtype, offset=int(size)) if size else np.array(output["data"])
    return flat[: int(np.prod(output["shape"]))].reshape(output["shape"])


def _head(name: str, array: NDArray[np.generic]) -> dict[str, object]:
    shape: Sequence[int] = array.shape
    return {"name": name, "shape": list(shape), "datatype": DATATYPES[array.dtype.name]}


def _dump(document: object) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
