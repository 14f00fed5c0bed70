"""Routes that only an operator may use."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request

from cohort.auth.authority import Authority
from cohort.http.credentials import CALLER, credentials_in
from cohort.http.methods import Routes
from cohort.operating import ControlPlane


def operator_only(authority: Authority) -> Any:
    """Return a dependency that refuses callers that are not operators."""

    async def check(request: Request) -> None:
        operator = authority.check_operator(credentials_in(request.scope))
        request.scope[CALLER] = operator

    return Depends(check)


def admin_router(plane: ControlPlane, *, authority: Authority) -> Routes:
    """Return the routes, served from `plane`."""
    routes = Routes(prefix="/admin", tags=["admin"], dependencies=[operator_only(authority)])

    @routes.post("/models/{model}/load", summary="Load a model")
    async def load(model: str) -> dict[str, Any]:
        """Responds once the model is ready, or with the reason why it is not."""
        await plane.load(model)
        return await plane.model(plane.limited_to(None), model)

    @routes.post("/models/{model}/unload", summary="Unload a model")
    async def unload(model: str) -> dict[str, Any]:
        """The model stays unloaded until it is loaded again. Requests in flight finish."""
        await plane.unload(model)
        return await plane.model(plane.limited_to(None), model)

    @routes.get("/rollouts", summary="Every rollout: variants, decisions and evidence")
    async def rollouts() -> dict[str, Any]:
        return await plane.rollouts()

    @routes.post("/rollouts/{model}/rollback/{variant}", summary="Roll a variant back")
    async def roll_back(model: str, variant: str) -> dict[str, Any]:
        """Its callers get the baseline, in every process that shares the state folder."""
        return await plane.roll_back(model, variant)

    @routes.post("/rollouts/{model}/clear", summary="End all rollbacks of a model")
    async def clear(model: str) -> dict[str, Any]:
        """Variants and shadow follow the config file again. Their evidence starts from zero."""
        return await plane.clear(model)

    @routes.post("/rollouts/{model}/clear/{variant}", summary="End the rollback of a variant")
    async def clear_variant(model: str, variant: str) -> dict[str, Any]:
        """It gets its weight back. Its evidence starts from zero."""
        return await plane.clear(model, variant)

    @routes.get(
        "/rollouts/{model}/shadow/examples", summary="Requests that the shadow answered differently"
    )
    async def examples(model: str) -> list[dict[str, Any]]:
        """The latest examples, newest first. The list is empty unless `keep_examples` is set."""
        return await plane.shadow_examples(model)

    return routes
