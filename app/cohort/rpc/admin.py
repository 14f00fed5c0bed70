"""Loading and unloading models, for operators."""

from __future__ import annotations

from cohort.auth.authority import Authority
from cohort.errors import quoted
from cohort.open_inference import load_model
from cohort.operating import ControlPlane
from cohort.rpc.calls import RpcCall, credentials_of
from cohort.rpc.contents import read_parameters
from cohort.rpc.inference_pb2 import (
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)


class AdminCalls:
    """The handler of calls that load and unload models, if `authority` permits the caller."""

    def __init__(self, plane: ControlPlane, authority: Authority) -> None:
        self._plane = plane
        self._authority = authority

    async def load(
        self, request: RepositoryModelLoadRequest, call: RpcCall
    ) -> RepositoryModelLoadResponse:
        """Load a model, and respond when it serves. Raises NotReady with the reason on failure."""
        self._check(call, "RepositoryModelLoad", request.model_name)
        await load_model(self._plane, request.model_name, read_parameters(request.parameters))
        return RepositoryModelLoadResponse()

    async def unload(
        self, request: RepositoryModelUnloadRequest, call: RpcCall
    ) -> RepositoryModelUnloadResponse:
        """Unload a model; its requests in flight finish."""
        self._check(call, "RepositoryModelUnload", request.model_name)
        await self._plane.unload(request.model_name)
        return RepositoryModelUnloadResponse()

    def _check(self, call: RpcCall, method: str, model: str) -> None:
        """Raise Unauthorized or Forbidden unless the caller is an operator."""
        call.trace.action = f"{method} {quoted(model)}"
        operator = self._authority.check_operator(credentials_of(call.context))
        call.trace.caller = operator.name
