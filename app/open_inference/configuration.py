"""A version's settings in the form of Triton's `model_config.proto`.

https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from app.control_plane import Description, ModelReader
from app.open_inference.metadata import PLATFORM, dims_of
from app.tensors import STANDARD

DATA_TYPES = {
    datatype.name: f"TYPE_{'STRING' if datatype.name == 'BYTES' else datatype.name}"
    for datatype in STANDARD
}
"""Triton's names; any other datatype is TYPE_INVALID."""


def model_config(plane: ModelReader, model: str, version: str | None = None) -> Description:
    """The config of `version`, or of the default version where it is None.

    As in Triton, dimensions leave the rows out where `max_batch_size` is above 0, which it is where
    requests are batched. Raises ModelNotFound, VersionNotFound or NotReady.
    """
    described = plane.version(model, plane.ready(model, version))
    batching = described["batching"]
    specs = [*described["inputs"], *described["outputs"]]
    batched = batching["on"] and all(spec["shape"] for spec in specs)
    config: Description = {
        "name": model,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"specific": {"versions": [int(described["version"])]}},
        "max_batch_size": batching["max_batch_size"] if batched else 0,
        "input": [_tensor(spec, batched=batched) for spec in described["inputs"]],
        "output": [_tensor(spec, batched=batched) for spec in described["outputs"]],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [_instance_group(model, described["providers"]["device"])],
        "default_model_filename": "model.onnx",
        "parameters": {},
    }
    if batched:
        delay = round(batching["max_queue_delay_ms"] * 1000)
        config["dynamic_batching"] = {"max_queue_delay_microseconds": delay}
    return config


def _tensor(spec: Description, *, batched: bool) -> Description:
    dims = dims_of(spec)[1 if batched else 0 :]
    data_type = DATA_TYPES.get(spec["datatype"], "TYPE_INVALID")
    tensor: Description = {"name": spec["name"], "data_type": data_type, "dims": dims or [1]}
    return tensor if dims else {**tensor, "reshape": {"shape": []}}  # Triton has no empty dims


def _instance_group(model: str, device: str) -> Description:
    kind = "KIND_CPU" if device == "cpu" else "KIND_GPU"
    return {"name": model, "kind": kind, "count": 1}
