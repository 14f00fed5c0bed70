"""Metadata of the server and its models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version as distribution_version

from cohort.operating import Description, ModelReader

SERVER_NAME = "cohort"
SERVER_VERSION = distribution_version("cohort")

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
    "system_shared_memory",
)
"""Supported extensions; as in Triton, the list is the same over REST and gRPC."""

PLATFORM = "onnxruntime_onnx"


def server_metadata() -> Description:
    """Return the server's name, version and extensions."""
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(plane: ModelReader, model: str, version: str | None = None) -> Description:
    """Return the inputs and outputs of `version`, or of the default version if it is None.

    `versions` lists the named version, as in Triton, or all versions that are ready. Raises
    ModelNotFound, VersionNotFound or NotReady.
    """
    described = plane.version(model, plane.ready(model, version))
    ready = [one["version"] for one in plane.model(model)["versions"] if one["state"] == "READY"]
    metadata: Description = {
        "name": model,
        "versions": ready if version is None else [described["version"]],
        "platform": PLATFORM,
        "inputs": [_tensor(spec) for spec in described["inputs"]],
        "outputs": [_tensor(spec) for spec in sent_outputs(described)],
    }
    if optional := described["optional_inputs"]:
        metadata["optional_inputs"] = [_tensor(spec) for spec in optional]
    if properties := _class_names(described["outputs"]) | described["metadata"]["properties"]:
        metadata["properties"] = properties
    return metadata


def sent_outputs(described: Description) -> list[Description]:
    """Return the outputs that a version sends by default: its own, then those of labels."""
    outputs: list[Description] = described["outputs"]
    labels = [one["labels"] for one in outputs if one.get("labels", {}).get("always")]
    return outputs + [
        {"name": one["output"], "datatype": "BYTES", "shape": one["shape"]} for one in labels
    ]


def _tensor(spec: Description) -> Description:
    return {"name": spec["name"], "datatype": spec["datatype"], "shape": list(dims_of(spec))}


def _class_names(outputs: Sequence[Description]) -> dict[str, str]:
    """Return the class names of outputs' columns, which the protocol's tensors cannot carry."""
    named = [spec for spec in outputs if "classes" in spec]
    return {
        "classes" if len(named) == 1 else f"classes.{spec['name']}": json.dumps(
            spec["classes"], ensure_ascii=False
        )
        for spec in named
    }


def dims_of(spec: Description) -> list[int]:
    """Return a described tensor's shape, with -1 for a dimension of any length.

    An unknown rank becomes one dimension of any length: the protocol cannot express it.
    """
    if spec["shape"] is None:
        return [-1]
    return [size if isinstance(size, int) else -1 for size in spec["shape"]]
