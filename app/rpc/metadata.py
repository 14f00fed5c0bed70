"""What the server says of itself and of its models."""

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
    """Serves calls that change nothing and run nothing. An empty version means none."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def live(self, request: ServerLiveRequest, context: Context) -> ServerLiveResponse:
        return ServerLiveResponse(live=True)

    async def ready(self, request: ServerReadyRequest, context: Context) -> ServerReadyResponse:
        return ServerReadyResponse(ready=self._plane.readiness().ready)

    async def model_ready(self, request: ModelReadyRequest, context: Context) -> ModelReadyResponse:
        """A model that is not here is not ready: Triton's clients check before they load one."""
        try:
            self._plane.ready(request.name, request.version or None)
        except (NotFound, NotReady):
            return ModelReadyResponse(ready=False)
        return ModelReadyResponse(ready=True)

    async def server(
        self, request: ServerMetadataRequest, context: Context
    ) -> ServerMetadataResponse:
        return ServerMetadataResponse(**server_metadata())

    async def model(self, request: ModelMetadataRequest, context: Context) -> ModelMetadataResponse:
        metadata = model_metadata(self._plane, request.name, request.version or None)
        return ModelMetadataResponse(**metadata)

    async def config(self, request: ModelConfigRequest, context: Context) -> ModelConfigResponse:
        config = model_config(self._plane, request.name, request.version or None)
        # What the message has no field for is empty here, and of features that are not.
        message = ParseDict(config, ModelConfig(), ignore_unknown_fields=True)
        return ModelConfigResponse(config=message)

    async def index(
        self, request: RepositoryIndexRequest, context: Context
    ) -> RepositoryIndexResponse:
        index = repository_index(self._plane, only_ready=request.ready)
        return RepositoryIndexResponse(
            models=[RepositoryIndexResponse.ModelIndex(**one) for one in index]
        )

    async def statistics(
        self, request: ModelStatisticsRequest, context: Context
    ) -> ModelStatisticsResponse:
        statistics = model_statistics(self._plane, request.name or None, request.version or None)
        return ModelStatisticsResponse(model_stats=[ModelStatistics(**one) for one in statistics])
