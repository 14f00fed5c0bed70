"""What the server says of itself and of its models, from the control plane's plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version as distribution_version
from typing import Any

from app.control_plane import ControlPlane, Description
from app.errors import NotFound, NotReady
from app.rpc.calls import Context
from app.rpc.inference_pb2 import (
    DataType,
    ModelConfig,
    ModelConfigRequest,
    ModelConfigResponse,
    ModelDynamicBatching,
    ModelInput,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelOutput,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    ServerLiveRequest,
    ServerLiveResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)

EXTENSIONS = ("classification", "model_configuration", "model_repository", "statistics")
PLATFORM = "onnxruntime_onnx"
READY = "READY"
TYPES = frozenset(DataType.DESCRIPTOR.values_by_name)

TensorMetadata = ModelMetadataResponse.TensorMetadata


class About:
    """Answers every call that only asks."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def live(self, request: ServerLiveRequest, context: Context) -> ServerLiveResponse:
        return ServerLiveResponse(live=True)

    async def ready(self, request: ServerReadyRequest, context: Context) -> ServerReadyResponse:
        return ServerReadyResponse(ready=self._plane.readiness().ready)

    async def model_ready(self, request: ModelReadyRequest, context: Context) -> ModelReadyResponse:
        """A model that is not here is not ready: Triton's clients ask before they load one."""
        try:
            self._plane.ready(request.name, request.version or None)
        except (NotFound, NotReady):
            return ModelReadyResponse(ready=False)
        return ModelReadyResponse(ready=True)

    async def server(
        self, request: ServerMetadataRequest, context: Context
    ) -> ServerMetadataResponse:
        return ServerMetadataResponse(
            name="cohort", version=distribution_version("cohort"), extensions=EXTENSIONS
        )

    async def model(self, request: ModelMetadataRequest, context: Context) -> ModelMetadataResponse:
        described = self._described(request.name, request.version)
        return ModelMetadataResponse(
            name=request.name,
            versions=[
                one["version"]
                for one in self._plane.model(request.name)["versions"]
                if one["state"] == READY
            ],
            platform=PLATFORM,
            inputs=[_tensor(spec) for spec in described["inputs"]],
            outputs=[_tensor(spec) for spec in described["outputs"]],
            properties=described["metadata"]["properties"],
        )

    async def config(self, request: ModelConfigRequest, context: Context) -> ModelConfigResponse:
        described = self._described(request.name, request.version)
        return ModelConfigResponse(config=config_of(request.name, described))

    async def index(
        self, request: RepositoryIndexRequest, context: Context
    ) -> RepositoryIndexResponse:
        return RepositoryIndexResponse(
            models=[
                RepositoryIndexResponse.ModelIndex(**one)
                for one in self._plane.index()
                if one["state"] == READY or not request.ready
            ]
        )

    async def statistics(
        self, request: ModelStatisticsRequest, context: Context
    ) -> ModelStatisticsResponse:
        stats = self._plane.statistics(request.name or None, request.version or None)
        return ModelStatisticsResponse(model_stats=[ModelStatistics(**one) for one in stats])

    def _described(self, name: str, version: str) -> Description:
        """A READY version: the one asked for, or the one that answers. Raises NotReady."""
        return self._plane.version(name, self._plane.ready(name, version or None))


def config_of(name: str, described: Description) -> ModelConfig:
    """A version as Triton's model configuration tells it.

    Where requests are batched their rows are left out of `dims`; elsewhere max_batch_size is 0.
    """
    batching = described["batching"]
    inputs, outputs = described["inputs"], described["outputs"]
    rows = batching["on"] and all(spec["shape"] for spec in (*inputs, *outputs))
    skip = 1 if rows else 0
    config = ModelConfig(
        name=name,
        platform=PLATFORM,
        backend="onnxruntime",
        default_model_filename="model.onnx",
        max_batch_size=batching["max_batch_size"] if rows else 0,
        input=[
            ModelInput(name=spec["name"], data_type=_type(spec), dims=_shape(spec)[skip:])
            for spec in inputs
        ],
        output=[
            ModelOutput(name=spec["name"], data_type=_type(spec), dims=_shape(spec)[skip:])
            for spec in outputs
        ],
    )
    if rows:
        delay = round(batching["max_queue_delay_ms"] * 1000)
        config.dynamic_batching.CopyFrom(ModelDynamicBatching(max_queue_delay_microseconds=delay))
    return config


def _tensor(spec: Mapping[str, Any]) -> TensorMetadata:
    return TensorMetadata(name=spec["name"], datatype=spec["datatype"], shape=_shape(spec))


def _shape(spec: Mapping[str, Any]) -> Sequence[int]:
    """-1 for a dimension of any length; a shape of unknown rank reads as one of those."""
    if spec["shape"] is None:
        return [-1]
    return [size if isinstance(size, int) else -1 for size in spec["shape"]]


def _type(spec: Mapping[str, Any]) -> str:
    name = "STRING" if spec["datatype"] == "BYTES" else spec["datatype"]
    return f"TYPE_{name}" if f"TYPE_{name}" in TYPES else "TYPE_INVALID"
