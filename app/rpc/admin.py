"""Loading and unloading models, for operators."""

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
    """Serves the calls that load and unload models, if `authority` permits the caller."""

    def __init__(self, plane: ControlPlane, authority: Authority) -> None:
        self._plane = plane
        self._authority = authority

    async def load(
        self, request: RepositoryModelLoadRequest, context: Context
    ) -> RepositoryModelLoadResponse:
        """Load a model, and respond when it serves. Raises NotReady with the reason otherwise."""
        self._check(context)
        await load_model(self._plane, request.model_name, read_parameters(request.parameters))
        return RepositoryModelLoadResponse()

    async def unload(
        self, request: RepositoryModelUnloadRequest, context: Context
    ) -> RepositoryModelUnloadResponse:
        """Unload a model; its requests in flight finish."""
        self._check(context)
        self._plane.unload(request.model_name)
        return RepositoryModelUnloadResponse()

    def _check(self, context: Context) -> None:
        """Raise Unauthorized or Forbidden unless the operator calls."""
        metadata = context.invocation_metadata() or ()
        self._authority.check_operator(find_metadata(metadata, "authorization"))
