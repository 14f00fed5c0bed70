"""Build the application from settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version as distribution_version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app.main.service import Service
from app.rest import admin, errors, health, models, openapi, predict, v1, v2
from app.rest.limits import BodyLimit, CloseWhenDraining
from app.rest.request_ids import RequestIds
from app.settings import Settings


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the ASGI application; its lifespan loads the models. Works under any ASGI server."""
    settings = settings or Settings()
    service = Service(settings)
    token = settings.admin_token.get_secret_value() if settings.admin_token else None
    limit = settings.max_body_mb * 2**20

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        async with service.running():
            yield

    app = FastAPIOffline(
        redoc_url=None,
        title="Cohort",
        summary="Serves ONNX models.",
        version=distribution_version("cohort"),
        lifespan=lifespan,
        favicon_url="data:,",  # else FastAPI's
        static_url="/docs/static",
        swagger_ui_parameters={"docExpansion": "list", "tryItOutEnabled": True},
    )
    app.state.service = service
    app.include_router(predict.router(service.data_plane))
    app.include_router(v1.router(service.data_plane, service.control_plane))
    app.include_router(
        v2.router(service.data_plane, service.control_plane, admin_token=token, limit=limit)
    )
    app.include_router(models.router(service.control_plane))
    app.include_router(health.router(service.control_plane))
    app.include_router(admin.router(service.control_plane, token=token))
    errors.install(app)
    openapi.install(app, service.control_plane)
    app.add_middleware(BodyLimit, limit=limit)
    app.add_middleware(CloseWhenDraining, draining=lambda: service.control_plane.draining)
    app.add_middleware(RequestIds)
    return app
