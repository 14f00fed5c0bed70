"""What the server and its models say of themselves."""

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
"""As Triton, the same over REST and gRPC."""

PLATFORM = "onnxruntime_onnx"


def server_metadata() -> Description:
    """Name, version and extensions."""
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(plane: ModelReader, model: str, version: str | None = None) -> Description:
    """The inputs and outputs of `version`, or of the default version where it is None.

    `versions` are those that may be requested: the one that is named, as in Triton, or all
    that are ready. Raises ModelNotFound, VersionNotFound or NotReady.
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
    """The outputs of a version, those of labels behind them, as they come without names."""
    outputs: list[Description] = described["outputs"]
    labels = [one["labels"] for one in outputs if one.get("labels", {}).get("always")]
    return outputs + [
        {"name": one["output"], "datatype": "BYTES", "shape": one["shape"]} for one in labels
    ]


def _tensor(spec: Description) -> Description:
    return {"name": spec["name"], "datatype": spec["datatype"], "shape": list(dims_of(spec))}


def _class_names(outputs: Sequence[Description]) -> dict[str, str]:
    """The classes of the columns of outputs: the protocol's tensors have no place for them."""
    named = [spec for spec in outputs if "classes" in spec]
    return {
        "classes" if len(named) == 1 else f"classes.{spec['name']}": json.dumps(
            spec["classes"], ensure_ascii=False
        )
        for spec in named
    }


def dims_of(spec: Description) -> list[int]:
    """A described tensor's shape; -1 for a dimension of any length.

    An unknown rank reads as one dimension of any length: the protocol has no form for it.
    """
    if spec["shape"] is None:
        return [-1]
    return [size if isinstance(size, int) else -1 for size in spec["shape"]]
