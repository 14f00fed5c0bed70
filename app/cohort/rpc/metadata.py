"""Metadata of the server and its models: health, metadata, config, index and statistics."""

from __future__ import annotations

import asyncio

from google.protobuf.json_format import ParseDict

from cohort.errors import NotFound, NotReady
from cohort.open_inference import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from cohort.operating import ControlPlane
from cohort.rpc.calls import RpcCall
from cohort.rpc.inference_pb2 import (
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
    """The handler of read-only calls. An empty version stands for the default version."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def live(self, request: ServerLiveRequest, call: RpcCall) -> ServerLiveResponse:
        """Report that the process answers, and needs no restart."""
        return ServerLiveResponse(live=self._plane.liveness().ready)

    async def ready(self, request: ServerReadyRequest, call: RpcCall) -> ServerReadyResponse:
        """Report whether the process should receive traffic."""
        return ServerReadyResponse(ready=self._plane.readiness().ready)

    async def model_ready(self, request: ModelReadyRequest, call: RpcCall) -> ModelReadyResponse:
        """Report an unknown model as not ready: Triton's clients check before they load one."""
        try:
            self._plane.limited_to(call.models).ready(request.name, request.version or None)
        except (NotFound, NotReady):
            return ModelReadyResponse(ready=False)
        return ModelReadyResponse(ready=True)

    async def server(self, request: ServerMetadataRequest, call: RpcCall) -> ServerMetadataResponse:
        """Return the server's name, version and extensions."""
        return ServerMetadataResponse(**server_metadata())

    async def model(self, request: ModelMetadataRequest, call: RpcCall) -> ModelMetadataResponse:
        """Return a model's versions, inputs and outputs."""
        reader = self._plane.limited_to(call.models)

        def make() -> ModelMetadataResponse:
            found = model_metadata(reader, request.name, request.version or None)
            return ModelMetadataResponse(**found)

        return await asyncio.to_thread(make)  # it may have thousands of inputs

    async def config(self, request: ModelConfigRequest, call: RpcCall) -> ModelConfigResponse:
        """Return a model's config in Triton's message."""
        reader = self._plane.limited_to(call.models)

        def make() -> ModelConfigResponse:
            config = model_config(reader, request.name, request.version or None)
            # Our message has no fields for Triton's features that Cohort lacks; they are empty.
            message = ParseDict(config, ModelConfig(), ignore_unknown_fields=True)
            return ModelConfigResponse(config=message)

        return await asyncio.to_thread(make)  # as `model`

    async def index(
        self, request: RepositoryIndexRequest, call: RpcCall
    ) -> RepositoryIndexResponse:
        """Return every version of every model with its state, or only the READY ones."""
        reader = self._plane.limited_to(call.models)

        def make() -> RepositoryIndexResponse:
            index = repository_index(reader, only_ready=request.ready)
            return RepositoryIndexResponse(
                models=[RepositoryIndexResponse.ModelIndex(**one) for one in index]
            )

        return await asyncio.to_thread(make)  # there may be thousands

    async def statistics(
        self, request: ModelStatisticsRequest, call: RpcCall
    ) -> ModelStatisticsResponse:
        """Return the statistics of a version, of a model, or of all models."""
        reader = self._plane.limited_to(call.models)

        def make() -> ModelStatisticsResponse:
            statistics = model_statistics(reader, request.name or None, request.version or None)
            return ModelStatisticsResponse(
                model_stats=[ModelStatistics(**one) for one in statistics]
            )

        return await asyncio.to_thread(make)  # there may be thousands
