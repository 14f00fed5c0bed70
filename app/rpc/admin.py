"""Loading and unloading models, for the operator."""

from __future__ import annotations

from app.auth import Authority
from app.control_plane import ControlPlane
from app.open_inference import load_model
from app.rpc.calls import Context, find_metadata
from app.rpc.contents import read_parameters
from app.rpc.inference_pb2 import (
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)


class AdminCalls:
    """Serves the calls that change something, where `authority` lets the caller."""

    def __init__(self, plane: ControlPlane, authority: Authority) -> None:
        self._plane = plane
        self._authority = authority

    async def load(
        self, request: RepositoryModelLoadRequest, context: Context
    ) -> RepositoryModelLoadResponse:
        """Responds when the model serves, or with the reason why it does not."""
        self._check(context)
        await load_model(self._plane, request.model_name, read_parameters(request.parameters))
        return RepositoryModelLoadResponse()

    async def unload(
        self, request: RepositoryModelUnloadRequest, context: Context
    ) -> RepositoryModelUnloadResponse:
        self._check(context)
        self._plane.unload(request.model_name)
        return RepositoryModelUnloadResponse()

    def _check(self, context: Context) -> None:
        """Raise Unauthorized or Forbidden unless the operator calls."""
        metadata = context.invocation_metadata() or ()
        self._authority.check_operator(find_metadata(metadata, "authorization"))
