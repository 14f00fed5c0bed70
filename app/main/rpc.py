"""The gRPC server of the process, on the event loop of the HTTP server."""

from __future__ import annotations

import socket
from typing import NoReturn

import grpc
import structlog

from app.main.addresses import cannot_listen
from app.main.service import Service
from app.rpc import RpcServer
from app.settings import Settings
from app.tls import Tls, TlsWatcher

__all__ = ["RpcServer", "check_address", "start_rpc"]

log = structlog.get_logger("cohort")


def check_address(settings: Settings) -> None:
    """Raise SystemExit, after logging why, where gRPC could not be listened for just now."""
    host, port = settings.host, settings.grpc_port
    if not port:
        return
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        _refuse(error, settings)


def _refuse(error: OSError, settings: Settings) -> NoReturn:
    reason = cannot_listen(error, settings.host, settings.grpc_port, setting="grpc_port")
    log.error("cannot start", reason=reason)
    raise SystemExit(1) from None


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
        access_log=service.access_log,
    )
    try:
        await server.start(settings.host, settings.grpc_port, _credentials(service.tls))
    except OSError as error:
        _refuse(error, settings)
    log.info("listening for gRPC", host=settings.host, port=settings.grpc_port)
    return server


def _credentials(watcher: TlsWatcher | None) -> grpc.ServerCredentials | None:
    """What gRPC uses for handshakes, read again with the files; None without TLS."""
    if watcher is None:
        return None
    used = watcher.current

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used  # on any thread: at worst one is made twice
        if watcher.current is used:
            return None
        used = watcher.current
        return _configuration(used)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        changed,  # type: ignore[arg-type]  # None says that nothing has changed
        require_client_authentication=used.client_ca is not None,
    )


def _configuration(tls: Tls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key.encode(), tls.certificate.encode())],
        None if tls.client_ca is None else tls.client_ca.encode(),
    )
