"""A version's settings in the form of Triton's `model_config.proto`.

https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from cohort.open_inference.classification import has_rows
from cohort.open_inference.metadata import PLATFORM, dims_of, sent_outputs
from cohort.operating import Description, ModelReader
from cohort.tensors import STANDARD

DATA_TYPES = {
    datatype.name: f"TYPE_{'STRING' if datatype.name == 'BYTES' else datatype.name}"
    for datatype in STANDARD
}
"""Triton's datatype names; any other datatype is TYPE_INVALID."""

CHANNELS = (1, 3)
"""Numbers of channels of grey and colour images."""


def model_config(plane: ModelReader, model: str, version: str | None = None) -> Description:
    """Return the config of `version`, or of the default version if it is None.

    As in Triton, `max_batch_size` is above 0 if axis 0 is rows, and dimensions then omit that axis.
    It is 1 if requests are not batched. Raises ModelNotFound, VersionNotFound or NotReady.
    """
    described = plane.version(model, plane.ready(model, version))
    inputs, outputs = described["inputs"], described["outputs"]
    batching = described.get("batching", {"on": False})  # a language model does not have it
    optional = described["optional_inputs"]
    rows = has_rows([spec["shape"] for spec in inputs], [spec["shape"] for spec in outputs])
    batched = rows and batching["on"]
    most = batching["max_batch_size"] if batched else int(rows)
    config: Description = {
        "name": model,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"specific": {"versions": [int(described["version"])]}},
        "max_batch_size": most,
        "input": [
            *({**_tensor(spec, rows=rows), "format": _format(spec)} for spec in inputs),
            *({**_tensor(spec, rows=False), "optional": True} for spec in optional),
        ],
        "output": [_tensor(spec, rows=rows) for spec in sent_outputs(described)],
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


def _tensor(spec: Description, *, rows: bool) -> Description:
    dims = dims_of(spec)
    if rows and spec["shape"] is not None:
        dims = dims[1:]
    data_type = DATA_TYPES.get(spec["datatype"], "TYPE_INVALID")
    tensor: Description = {"name": spec["name"], "data_type": data_type, "dims": dims or [1]}
    return tensor if dims else {**tensor, "reshape": {"shape": []}}  # Triton has no empty dims


def _format(spec: Description) -> str:
    """Return the image layout of an input [N, C, H, W] or [N, H, W, C] of one or three channels."""
    shape = spec["shape"]
    if shape is None or len(shape) != 4:
        return "FORMAT_NONE"
    if shape[1] in CHANNELS:
        return "FORMAT_NCHW"
    return "FORMAT_NHWC" if shape[3] in CHANNELS else "FORMAT_NONE"


def _instance_group(model: str, device: str) -> Description:
    kind = "KIND_CPU" if device == "cpu" else "KIND_GPU"
    return {"name": model, "kind": kind, "count": 1}
