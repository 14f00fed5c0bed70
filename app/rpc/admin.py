"""Loading and unloading models, for who has the operator's token."""

from __future__ import annotations

from hmac import compare_digest

from app.control_plane import ControlPlane
from app.errors import Forbidden, InvalidInput, Unauthorized
from app.rpc.calls import Context
from app.rpc.inference_pb2 import (
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)


class Admin:
    """Answers the calls that change something. Without a `token` nobody may."""

    def __init__(self, plane: ControlPlane, token: str | None) -> None:
        self._plane = plane
        self._token = token

    async def load(
        self, request: RepositoryModelLoadRequest, context: Context
    ) -> RepositoryModelLoadResponse:
        """Answers once the model serves, or with the reason why it does not."""
        self._check(context)
        if request.parameters:
            raise InvalidInput("a model is loaded as its folder has it: there are no parameters")
        await self._plane.load(request.model_name)
        return RepositoryModelLoadResponse()

    async def unload(
        self, request: RepositoryModelUnloadRequest, context: Context
    ) -> RepositoryModelUnloadResponse:
        self._check(context)
        self._plane.unload(request.model_name)
        return RepositoryModelUnloadResponse()

    def _check(self, context: Context) -> None:
        """Raise Unauthorized or Forbidden unless the caller sent the token."""
        if self._token is None:
            raise Forbidden("this call is switched off: the server has no COHORT_ADMIN_TOKEN")
        metadata = dict(context.invocation_metadata() or ())
        scheme, _, given = str(metadata.get("authorization", "")).strip().partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise Unauthorized("this call needs the metadata 'authorization: Bearer' and the token")
        if not compare_digest(given.strip().encode(), self._token.encode()):
            raise Forbidden("the admin token is wrong")
