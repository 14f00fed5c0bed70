"""The gRPC server of the process, on the event loop of the HTTP server."""

from __future__ import annotations

import structlog

from app.main.addresses import cannot_listen
from app.main.service import Service
from app.rpc import RpcServer

__all__ = ["RpcServer", "start_rpc"]

log = structlog.get_logger("cohort")


async def start_rpc(service: Service) -> RpcServer | None:
    """Start the gRPC server; None where `grpc_port` is 0.

    Raises SystemExit, after logging why, where the address is not available.
    """
    settings = service.settings
    if not settings.grpc_port:
        return None

    server = RpcServer(
        service.data_plane,
        service.control_plane,
        max_message_bytes=settings.max_body_mb * 2**20,
        max_connections=service.connections.grpc,
        max_calls=settings.max_concurrency,
        idle_seconds=settings.keep_alive_seconds,
        authority=service.authority,
    )
    try:
        await server.start(settings.host, settings.grpc_port)
    except OSError as error:
        reason = cannot_listen(error, settings.host, settings.grpc_port, setting="grpc_port")
        log.error("cannot start", reason=reason)  # noqa: TRY400 - the reason suffices
        raise SystemExit(1) from None
    log.info("listening for gRPC", host=settings.host, port=settings.grpc_port)
    return server
