"""The gRPC server of the process, on the event loop of the HTTP server."""

from __future__ import annotations

import grpc
import structlog

from app.addresses import refuse_rpc_address
from app.main.resources import part_of
from app.main.service import Service
from app.rpc import RpcServer
from app.tls import Tls, TlsWatcher

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
        max_calls=part_of(settings.max_concurrency, settings.workers),
        several=service.siblings.several,
        idle_seconds=settings.keep_alive_seconds,
        authority=service.authority,
        access_log=service.access_log,
    )
    try:
        await server.start(settings.host, settings.grpc_port, _credentials(service.tls))
    except OSError as error:
        refuse_rpc_address(error, settings)
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
