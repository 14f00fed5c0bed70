"""Plain clients of the three forms of the Open Inference Protocol.

They write and read the wire's bytes with json and the `onnx` package, not with Cohort's codec.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import grpc
import httpx
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from cohort.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse
from tests.onnx_models import ELEMENT_TYPES

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Datatypes = Mapping[str, str]  # by input name
Ask = Callable[[str, Arrays, Datatypes], dict[str, Array]]

TIMEOUT = 60.0


class Refused(Exception):
    """The server returned an error, with this text."""


class Clients:
    """Connections to one server. Each form is a function from a model and inputs to outputs."""

    def __init__(self, url: str, rpc: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT)
        largest = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(rpc, options=largest)
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        self.forms: Mapping[str, Ask] = {
            "V2 binary": self.binary,
            "V2 JSON": self.json,
            "gRPC": self.rpc,
        }

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._channel.close()

    def binary(self, model: str, arrays: Arrays, datatypes: Datatypes) -> dict[str, Array]:
        """Call Open Inference REST with the binary tensor extension in both directions."""
        parts = {name: to_raw(array) for name, array in arrays.items()}
        head = {
            "inputs": [
                {
                    "name": name,
                    "datatype": datatypes[name],
                    "shape": array.shape,
                    "parameters": {"binary_data_size": len(parts[name])},
                }
                for name, array in arrays.items()
            ],
            "parameters": {"binary_data_output": True},
        }
        text = json.dumps(head).encode()
        answer = self._post(
            model,
            b"".join([text, *parts.values()]),
            {"Inference-Header-Content-Length": str(len(text))},
        )
        length = int(answer.headers["Inference-Header-Content-Length"])
        body, at, outputs = answer.content, length, {}
        for output in json.loads(body[:length])["outputs"]:
            end = at + output["parameters"]["binary_data_size"]
            outputs[output["name"]] = from_raw(body[at:end], output["datatype"], output["shape"])
            at = end
        if at != len(body):
            raise AssertionError(f"{len(body) - at} bytes follow the last output")
        return outputs

    def json(self, model: str, arrays: Arrays, datatypes: Datatypes) -> dict[str, Array]:
        """Call Open Inference REST with JSON only."""
        inputs = [
            {
                "name": name,
                "datatype": datatypes[name],
                "shape": array.shape,
                "data": array.ravel().tolist(),
            }
            for name, array in arrays.items()
        ]
        answer = self._post(model, json.dumps({"inputs": inputs}).encode(), {})
        return {
            output["name"]: np.array(output["data"], _dtype(output["datatype"])).reshape(
                output["shape"]
            )
            for output in json.loads(answer.content)["outputs"]
        }

    def rpc(self, model: str, arrays: Arrays, datatypes: Datatypes) -> dict[str, Array]:
        """Call Open Inference gRPC with raw contents."""
        request = ModelInferRequest(model_name=model)
        for name, array in arrays.items():
            request.inputs.add(name=name, datatype=datatypes[name], shape=array.shape)
            request.raw_input_contents.append(to_raw(array))
        try:
            answer = self._infer(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise Refused(f"{error.code().name}: {error.details()}") from error
        return {
            output.name: from_raw(raw, output.datatype, output.shape)
            for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        }

    def _post(self, model: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        answer = self._http.post(f"/v2/models/{model}/infer", content=body, headers=headers)
        if answer.status_code != 200:
            raise Refused(f"{answer.status_code}: {answer.text[:300]}")
        return answer


def to_raw(array: Array) -> bytes:
    """Return a tensor's bytes as in a TensorProto; each text follows its length."""
    if array.dtype == object:
        texts = [text if isinstance(text, bytes) else text.encode() for text in array.ravel()]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return numpy_helper.from_array(array).raw_data


def from_raw(raw: bytes, datatype: str, shape: Sequence[int]) -> Array:
    """Return the tensor whose bytes are `raw`: the inverse of `to_raw`."""
    if datatype == "BYTES":
        texts, at = [], 0
        while at < len(raw):
            (length,) = struct.unpack_from("<I", raw, at)
            texts.append(raw[at + 4 : at + 4 + length].decode())
            at += 4 + length
        array = np.empty(prod(shape), object)
        array[:] = texts
        return array.reshape(shape)
    # As a list: onnx 1.21 cannot unpack a scalar of two bits.
    flat = onnx.TensorProto(data_type=ELEMENT_TYPES[datatype], dims=[prod(shape)], raw_data=raw)
    return numpy_helper.to_array(flat).reshape(shape)


def _dtype(datatype: str) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(ELEMENT_TYPES[datatype])
