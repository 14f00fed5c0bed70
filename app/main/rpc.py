"""Start and stop gRPC beside HTTP, on the same loop."""

from __future__ import annotations

import structlog

from app.main.service import Service
from app.rpc import RpcServer

__all__ = ["RpcServer", "start_rpc"]

log = structlog.get_logger("cohort")


async def start_rpc(service: Service) -> RpcServer | None:
    """Listen for gRPC; None where it is turned off.

    Raises SystemExit, having said why, where the address cannot be had.
    """
    settings = service.settings
    if not settings.grpc_port:
        return None

    server = RpcServer(
        service.data_plane,
        service.control_plane,
        limit=settings.max_body_mb * 2**20,
        authority=service.authority,
    )
    try:
        await server.start(settings.host, settings.grpc_port)
    except OSError as error:
        log.error("cannot start", reason=str(error))  # noqa: TRY400 - the reason says it all
        raise SystemExit(1) from None
    log.info("gRPC is open", host=settings.host, port=settings.grpc_port)
    return server
