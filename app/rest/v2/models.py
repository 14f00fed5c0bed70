"""What the server is, and what its models take, give, are set to and have done."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.control_plane import ControlPlane, Description
from app.errors import NotReady
from app.rest.health import READ

EXTENSIONS = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
]
PLATFORM = "onnxruntime_onnx"


def metadata_router(plane: ControlPlane) -> APIRouter:
    """The routes, answering from `plane`."""
    routes = APIRouter()

    @routes.get("", summary="What the server is")
    async def server() -> dict[str, Any]:
        version = plane.health()["version"]
        return {"name": "cohort", "version": version, "extensions": EXTENSIONS}

    @routes.api_route("/health/live", methods=READ, summary="The process answers")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @routes.api_route("/health/ready", methods=READ, summary="The process wants traffic")
    async def ready() -> dict[str, bool]:
        readiness = plane.readiness()
        if not readiness.ready:
            raise NotReady(readiness.reason)
        return {"ready": True}

    # Before the models' own routes: "stats" is no model there.
    @routes.get("/models/stats", summary="What all models have done")
    async def all_statistics() -> dict[str, Any]:
        return {"model_stats": plane.statistics()}

    @routes.get("/models/{model}", summary="What a model takes and gives")
    async def model(model: str) -> dict[str, Any]:
        return metadata(plane, model, None)

    @routes.get("/models/{model}/versions/{version}", summary="What a version takes and gives")
    async def version(model: str, version: str) -> dict[str, Any]:
        return metadata(plane, model, version)

    @routes.api_route("/models/{model}/ready", methods=READ, summary="The model would answer")
    async def model_ready(model: str) -> dict[str, Any]:
        plane.ready(model)
        return {"name": model, "ready": True}

    @routes.api_route(
        "/models/{model}/versions/{version}/ready", methods=READ, summary="The version would answer"
    )
    async def version_ready(model: str, version: str) -> dict[str, Any]:
        plane.ready(model, version)
        return {"name": model, "ready": True}

    @routes.get("/models/{model}/config", summary="How a model is set, as Triton writes it")
    async def model_config(model: str) -> dict[str, Any]:
        return config(plane, model, None)

    @routes.get(
        "/models/{model}/versions/{version}/config", summary="How a version is set, likewise"
    )
    async def version_config(model: str, version: str) -> dict[str, Any]:
        return config(plane, model, version)

    @routes.get("/models/{model}/stats", summary="What a model's versions have done")
    async def statistics(model: str) -> dict[str, Any]:
        return {"model_stats": plane.statistics(model)}

    @routes.get("/models/{model}/versions/{version}/stats", summary="What a version has done")
    async def version_statistics(model: str, version: str) -> dict[str, Any]:
        return {"model_stats": plane.statistics(model, version)}

    return routes


def metadata(plane: ControlPlane, model: str, version: str | None) -> Description:
    """A model as the protocol describes it; open dimensions are -1.

    A tensor of unknown rank is shown as one dimension, as the protocol has no word for it.
    """
    described = plane.version(model, plane.ready(model, version))
    ready = [one["version"] for one in plane.model(model)["versions"] if one["state"] == "READY"]
    return {
        "name": model,
        "versions": [version] if version is not None else ready,
        "platform": PLATFORM,
        "inputs": [_tensor(spec) for spec in described["inputs"]],
        "outputs": [_tensor(spec) for spec in described["outputs"]],
    }


def _tensor(spec: Description) -> Description:
    return {"name": spec["name"], "datatype": spec["datatype"], "shape": _dims(spec)}


def _dims(spec: Description) -> list[int]:
    if spec["shape"] is None:
        return [-1]
    return [size if isinstance(size, int) else -1 for size in spec["shape"]]


def config(plane: ControlPlane, model: str, version: str | None) -> Description:
    """A version's settings in the form of Triton's `model_config.proto`, as JSON.

    As there, dimensions leave the batch out where `max_batch_size` is above 0.
    """
    described = plane.version(model, plane.ready(model, version))
    batching = described["batching"]
    rows = batching["max_batch_size"] if batching["on"] else 0
    specs = [*described["inputs"], *described["outputs"]]
    rows = rows if all(spec["shape"] for spec in specs) else 0
    written: Description = {
        "name": model,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"specific": {"versions": [int(described["version"])]}},
        "max_batch_size": rows,
        "input": [_setting(spec, rows) for spec in described["inputs"]],
        "output": [_setting(spec, rows) for spec in described["outputs"]],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [_instances(model, described["providers"]["active"])],
        "default_model_filename": "model.onnx",
        "parameters": {},
    }
    if rows:
        delay = round(batching["max_queue_delay_ms"] * 1000)
        written["dynamic_batching"] = {"max_queue_delay_microseconds": delay}
    return written


def _setting(spec: Description, rows: int) -> Description:
    name = {"BYTES": "STRING"}.get(spec["datatype"], spec["datatype"])
    dims = _dims(spec)[1 if rows else 0 :]
    written = {"name": spec["name"], "data_type": f"TYPE_{name}", "dims": dims or [1]}
    return written if dims else {**written, "reshape": {"shape": []}}  # Triton has no empty dims


def _instances(model: str, provider: str) -> Description:
    on_cpu = provider in {"cpu", "openvino", "dnnl", "xnnpack"}
    return {"name": model, "kind": "KIND_CPU" if on_cpu else "KIND_GPU", "count": 1}
