"""TensorFlow Serving's REST API: `POST /v1/models/{model}:predict`, status and metadata.

https://www.tensorflow.org/tfx/serving/api_rest. A model has one signature, `serving_default`. A
label is a variant of a rollout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from cohort.codec import SIGNATURE, V1Request, are_large, parse_v1
from cohort.codec.labels import read_top
from cohort.codec.naming import UNNAMED, Naming, naming_of
from cohort.codec.v1 import v1_of_document
from cohort.errors import CohortError, InvalidInput, NotFound, quoted
from cohort.http.calls import JSON, NO_QUERY, Encoded, Read, Route, RowForm
from cohort.http.media import check_json
from cohort.http.v1.rows import read_v1_rows
from cohort.http.version_headers import version_headers
from cohort.operating import ModelReader
from cohort.serving import Headers, Lease, Outputs
from cohort.tensors import Arrays

VERBS = ("predict", "classify", "regress")

# https://github.com/tensorflow/serving/blob/master/tensorflow_serving/apis/get_model_status.proto
STATES: Mapping[str, str] = {
    "LOADING": "LOADING",
    "READY": "AVAILABLE",
    "UNLOADING": "UNLOADING",
    "UNAVAILABLE": "END",
}

# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/types.proto
DTYPES: Mapping[str, str] = {
    "BOOL": "DT_BOOL",
    "BYTES": "DT_STRING",
    "FP16": "DT_HALF",
    "BF16": "DT_BFLOAT16",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    **{f"INT{bits}": f"DT_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"DT_UINT{bits}" for bits in (8, 16, 32, 64)},
}


LATEST = "0"
"""The version that clients of OpenVINO Model Server request if their caller names no version."""


@dataclass(frozen=True, slots=True)
class Address:
    """A model in a path, with an optional version or label."""

    model: str
    version: str | None = None
    label: str | None = None

    @classmethod
    def of_path(cls, model: str, version: str | None = None, label: str | None = None) -> Address:
        """Return the address for the parts of a path. Version 0 means no version."""
        return cls(model, None if version == LATEST else version, label)


class V1Call:
    """One call to predict."""

    __slots__ = ("_naming", "_request", "_top", "label", "model", "timeout", "version")
    beside = 0
    parameters: Mapping[str, object] = MappingProxyType({})

    def __init__(self, request: V1Request, address: Address, top: int = 0) -> None:
        self._request = request
        self._top = top
        self._naming: Naming = UNNAMED
        self.model: str | None = address.model
        self.version = address.version
        self.label = address.label
        self.timeout: float | None = None

    def decode_work(self, lease: Lease) -> int:
        """Return 0: the body was parsed on the codec thread, or is short."""
        return 0

    def is_large(self, outputs: Outputs) -> bool:
        """Return True if writing the response takes long."""
        if are_large(outputs):
            return True
        return self._naming is not UNNAMED and self._naming.is_long(outputs)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays in the version's types. Raises InvalidInput."""
        positions = lease.select(None)  # raises if no output can be sent
        served = lease.served
        self._naming = naming_of(served.labellers, served.detectors, positions, self._top)
        return self._request.decode(lease.inputs, lease.served.optional_inputs)

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response. V1 bodies have no field for the version, so headers name it."""
        specs = lease.outputs
        check = lease.check_time
        body = self._request.encode(
            {specs[position].name: outputs[position] for position in lease.select(None)},
            self._naming.write(outputs, check),
            check,
        )
        return Encoded(body, version_headers(lease.version, lease.variant, JSON["content-type"]))


def v1_route(address: Address, query: Mapping[str, str] = NO_QUERY) -> Route:
    """Return how bodies are read at an address. The query may contain `top`."""

    def top() -> int:
        return read_top("'top'", query["top"]) if "top" in query else 0

    def reader(headers: Headers) -> Read:
        check_json(headers)
        labels = top()
        return lambda body: V1Call(parse_v1(body), address, labels)

    def rows(headers: Headers) -> RowForm | None:
        del headers
        if address.label is not None:
            return None
        labels = top()
        return RowForm(
            partial(read_v1_rows, top=labels),
            lambda document, _: V1Call(v1_of_document(document), address, labels),
        )

    return Route(address.model, reader, rows, address.version)


def match_v1(path: str, query: Mapping[str, str] = NO_QUERY) -> Route | None:
    """Return the route of a predict path without escapes, or None for any other."""
    found = V1_PATH.fullmatch(path)
    return v1_route(Address.of_path(**found.groupdict()), query) if found else None


V1_PATH = re.compile(
    r"/v1/models/(?P<model>[\w.-]+)(?:/versions/(?P<version>\w+)|/labels/(?P<label>[\w.-]+))?:predict",
    re.ASCII,
)


def version_of(plane: ModelReader, address: Address) -> str | None:
    """Return the version an address names, by number or by label, or None."""
    if address.label is not None:
        return plane.version_for_label(address.model, address.label)
    return address.version


def model_status(plane: ModelReader, address: Address) -> dict[str, Any]:
    """Return `GetModelStatus` of all versions, with KServe's fields, or of the named one."""
    version = version_of(plane, address)
    versions: Sequence[Mapping[str, Any]] = (
        plane.model(address.model)["versions"]
        if version is None
        else [plane.version(address.model, version)]
    )
    by_name = version is None and address.label is None
    return {
        **(_kserve_status(plane, address.model) if by_name else {}),
        "model_version_status": [
            {
                "version": one["version"],
                "state": STATES[one["state"]],
                "status": {
                    "error_code": "UNKNOWN" if one["state"] == "UNAVAILABLE" else "OK",
                    "error_message": one["reason"],
                },
            }
            for one in versions
        ],
    }


def _kserve_status(plane: ModelReader, model: str) -> dict[str, Any]:
    """https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol"""
    try:
        plane.ready(model)
    except CohortError:
        return {"name": model, "ready": False}
    return {"name": model, "ready": True}


def signature_metadata(plane: ModelReader, address: Address) -> dict[str, Any]:
    """Return `GetModelMetadata`: the signature of the named version, or of the default one."""
    version = version_of(plane, address) or plane.ready(address.model)
    described = plane.version(address.model, version)
    if "inputs" not in described:
        plane.ready(address.model, version)  # raises the reason
    signature = {
        "inputs": _tensors(described["inputs"]),
        "outputs": _tensors(described["outputs"]),
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }
    return {
        "model_spec": {"name": address.model, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
    }


def _tensors(specs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        spec["name"]: {
            "dtype": DTYPES.get(spec["datatype"], "DT_INVALID"),
            "tensor_shape": _shape(spec["shape"]),
            "name": spec["name"],
        }
        for spec in specs
    }


def _shape(shape: Sequence[int | str | None] | None) -> dict[str, Any]:
    dimensions = [
        {
            "size": str(size) if isinstance(size, int) else "-1",
            "name": size if isinstance(size, str) else "",
        }
        for size in shape or ()
    ]
    return {"dim": dimensions, "unknown_rank": shape is None}


def refuse_verb(verb: str) -> CohortError:
    """Return the error for a verb other than `predict`."""
    if verb in VERBS:
        return InvalidInput(
            f"':{verb}' needs tf.Example features, which ONNX models do not accept; use ':predict'"
        )
    return NotFound(f"unknown verb {quoted(':' + verb)}; use ':predict'")
