"""The ASGI application."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from importlib.metadata import version as distribution_version
from pathlib import Path

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.errors import ServerErrorMiddleware

from cohort.http.admin import admin_router
from cohort.http.error_handlers import install_error_handlers, respond_to_bug
from cohort.http.guards.callers import CallersOnly
from cohort.http.guards.cors import OtherOrigins
from cohort.http.guards.heads import BareValues, CheckedHeads
from cohort.http.guards.limits import BodyLimit, CloseWhenDraining
from cohort.http.guards.log_lines import LogLines
from cohort.http.guards.request_ids import RequestIds
from cohort.http.health import health_router
from cohort.http.inference_paths import InferencePaths
from cohort.http.mlflow.routes import invocations_router
from cohort.http.models import models_router
from cohort.http.openai.routes import openai_router
from cohort.http.openapi import install_openapi
from cohort.http.pages import DOCS, STATIC, SafeInBrowsers, front_router, install_docs
from cohort.http.playground.routes import PLAYGROUND, install_playground
from cohort.http.predict.routes import predict_router
from cohort.http.route_path import UnderRoot
from cohort.http.sagemaker.routes import multi_model_router
from cohort.http.spans import Traces
from cohort.http.v1.routes import v1_router
from cohort.http.v2.routes import v2_router
from cohort.observability.access_log import AccessLog
from cohort.observability.tracing import open_tracing
from cohort.operating import MultiModel
from cohort.process.lifespan import running_or_ended
from cohort.process.service import Service
from cohort.settings import Settings, read_settings


def create_app(
    models: str | Path | None = None,
    *,
    settings: Settings | None = None,
    access_log: AccessLog | None = None,
    **options: object,
) -> FastAPI:
    """Create the ASGI application, for any ASGI server, or to be mounted in another application.

    Its lifespan runs the Service. An application that mounts it must enter that lifespan in its
    own: `async with app.router.lifespan_context(app)`.

    models: The folder of models; default: the folder in the environment.
    settings: All settings; default: read from the environment and overridden by `options`, which
        are named as those of `cohort serve`. Raises SettingsInvalid if they are invalid, and
        TracingUnavailable if OTEL_TRACES_EXPORTER needs a package that is not installed.
    access_log: Receives a line for each request; default None: no access log, as servers have one.
    """
    if settings is None:
        settings = read_settings({**options, **({} if models is None else {"models": models})})
    service = Service(settings, access_log=access_log, tracer=open_tracing(os.environ))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running_or_ended(service):
            yield

    return make_application(service, lifespan)


def make_application(
    service: Service, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None
) -> FastAPI:
    """Make the routes and the middleware around them, over a service.

    lifespan: Starts and stops the service; default None: the caller does.
    """
    settings = service.settings
    # Import now the modules that anyio needs for the first route on a thread.
    # Later, no file descriptor may be left to read them.
    import_module("anyio._backends._asyncio")
    app = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # they would use the Host header; heads.py handles slashes
        title="Cohort",
        summary="Serves ONNX models.",
        version=distribution_version("cohort"),
        lifespan=lifespan,
        static_url=STATIC,
    )
    app.state.service = service
    install_docs(app, service.control_plane)
    if settings.playground:
        install_playground(app, service.control_plane, authority=service.authority)
    first_page = PLAYGROUND if settings.playground else DOCS
    app.include_router(front_router(service.control_plane, first_page))
    # first: routes are tried in order
    app.include_router(health_router(service.control_plane, ready_path=settings.health_route))
    if settings.multi_model:
        most = settings.max_loaded_models
        hosted = MultiModel(settings.models_folder, service.control_plane, most)
        app.include_router(
            multi_model_router(service.core.data_plane, hosted, authority=service.authority)
        )
    app.include_router(predict_router(service.core.data_plane))
    app.include_router(invocations_router(service.core.data_plane, service.control_plane))
    app.include_router(openai_router(service.core.data_plane, service.control_plane))
    app.include_router(v1_router(service.core.data_plane, service.control_plane))
    app.include_router(
        v2_router(
            service.core.data_plane,
            service.control_plane,
            authority=service.authority,
            regions=service.regions,
        )
    )
    app.include_router(models_router(service.control_plane, authority=service.authority))
    app.include_router(admin_router(service.control_plane, authority=service.authority))
    app.router.routes.insert(0, InferencePaths(service.core.data_plane, service.hot.matches))
    install_error_handlers(app)
    install_openapi(app, service.control_plane, needs_key=service.authority.asks_callers)
    # The middleware that is added last sees a request first.
    app.add_middleware(ServerErrorMiddleware, handler=respond_to_bug)
    app.add_middleware(
        BodyLimit, limit=settings.max_body_mb * 2**20, memory=service.core.data_plane.memory
    )
    if service.authority.asks_callers:
        opened = frozenset({settings.health_route})
        app.add_middleware(CallersOnly, authority=service.authority, opened=opened)
    app.add_middleware(CheckedHeads, rules=service.head_rules)
    if settings.cors_origins:  # outside all refusals, so that pages can read them
        app.add_middleware(OtherOrigins, origins=settings.cors_origins)
    app.add_middleware(CloseWhenDraining, draining=lambda: service.control_plane.draining)
    app.add_middleware(SafeInBrowsers)
    app.add_middleware(LogLines, access_log=service.access_log)
    if service.tracer is not None:
        app.add_middleware(Traces, tracer=service.tracer)
    if settings.root_path:
        app.add_middleware(UnderRoot, root=settings.root_path)
    app.add_middleware(RequestIds)
    app.add_middleware(BareValues)
    return app
