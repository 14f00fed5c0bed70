"""Metadata of the server and its models: health, metadata, config, index and statistics."""

from __future__ import annotations

from google.protobuf.json_format import ParseDict

from app.control_plane import ControlPlane
from app.errors import NotFound, NotReady
from app.open_inference import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from app.rpc.calls import Context
from app.rpc.inference_pb2 import (
    ModelConfig,
    ModelConfigRequest,
    ModelConfigResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
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


class MetadataCalls:
    """Serves the calls that only read. An empty version stands for the default one."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def live(self, request: ServerLiveRequest, context: Context) -> ServerLiveResponse:
        """Report that the process answers."""
        return ServerLiveResponse(live=True)

    async def ready(self, request: ServerReadyRequest, context: Context) -> ServerReadyResponse:
        """Report whether the process should receive traffic."""
        return ServerReadyResponse(ready=self._plane.readiness().ready)

    async def model_ready(self, request: ModelReadyRequest, context: Context) -> ModelReadyResponse:
        """Report an unknown model as not ready: Triton's clients check before they load one."""
        try:
            self._plane.ready(request.name, request.version or None)
        except (NotFound, NotReady):
            return ModelReadyResponse(ready=False)
        return ModelReadyResponse(ready=True)

    async def server(
        self, request: ServerMetadataRequest, context: Context
    ) -> ServerMetadataResponse:
        """The server's name, version and extensions."""
        return ServerMetadataResponse(**server_metadata())

    async def model(self, request: ModelMetadataRequest, context: Context) -> ModelMetadataResponse:
        """A model's versions, inputs and outputs."""
        metadata = model_metadata(self._plane, request.name, request.version or None)
        return ModelMetadataResponse(**metadata)

    async def config(self, request: ModelConfigRequest, context: Context) -> ModelConfigResponse:
        """A model's config, in Triton's message."""
        config = model_config(self._plane, request.name, request.version or None)
        # Our message has no fields for Triton's features that Cohort lacks; they are empty there.
        message = ParseDict(config, ModelConfig(), ignore_unknown_fields=True)
        return ModelConfigResponse(config=message)

    async def index(
        self, request: RepositoryIndexRequest, context: Context
    ) -> RepositoryIndexResponse:
        """Every version of every model with its state, or only the READY ones."""
        index = repository_index(self._plane, only_ready=request.ready)
        return RepositoryIndexResponse(
            models=[RepositoryIndexResponse.ModelIndex(**one) for one in index]
        )

    async def statistics(
        self, request: ModelStatisticsRequest, context: Context
    ) -> ModelStatisticsResponse:
        """The statistics of a version, of a model, or of all models."""
        statistics = model_statistics(self._plane, request.name or None, request.version or None)
        return ModelStatisticsResponse(model_stats=[ModelStatistics(**one) for one in statistics])
