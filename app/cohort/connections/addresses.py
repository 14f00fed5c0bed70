"""The server's addresses: opening them, and messages about them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import NoReturn

import structlog

from cohort.connections.listeners import hosts_of, open_listeners, open_unix_listener
from cohort.settings import Settings, variable

log = structlog.get_logger("cohort")

BACKLOG = 16_384
"""Connections that may wait to be accepted, if `net.core.somaxconn` allows as many.

Further ones are dropped, and clients retry after one second, then three. 5,000 clients that connect
at once overflow a queue of 2048 (`ListenOverflows`), but not one of 4096.
"""


def address_for_people(settings: Settings, port: int, *, tls: bool) -> str:
    """Return an address that a browser on this machine can open, or the Unix socket."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host = hosts_of(settings.host)[0]
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - all addresses, which include this one
        host = "localhost"
    place = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{place}:{port}"


def open_http(settings: Settings) -> list[socket.socket]:
    """Listen for HTTP on the Unix socket if one is set, otherwise on the port.

    Raises OSError, whose `filename` is the host or the Unix socket.
    """
    if settings.uds is not None:
        return [open_unix_listener(settings.uds, backlog=BACKLOG)]
    return open_listeners(settings.host, settings.port, backlog=BACKLOG)


def listened(listeners: Sequence[socket.socket], settings: Settings) -> dict[str, str | int]:
    """Return the addresses of HTTP for the log."""
    if settings.uds is not None:
        return {"uds": str(settings.uds)}
    return {"host": settings.host, "port": listeners[0].getsockname()[1]}


def cannot_listen(error: OSError, port: int, *, setting: str) -> str:
    """Return why an address is not available. `setting` is the setting of the port."""
    host = str(error.filename)
    if "/" in host:
        return f"cannot listen on {host}: {error.strerror}"
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        option = f"--{setting.replace('_', '-')}"
        reason = f"address already in use; choose another port with {option} or {variable(setting)}"
    return f"cannot listen on {place}: {reason}"


def check_rpc_address(settings: Settings) -> None:
    """Raise SystemExit, after logging the reason, if gRPC cannot listen at the moment."""
    if not settings.grpc_port:
        return
    try:
        for one in open_listeners(settings.host, settings.grpc_port, backlog=1):
            one.close()
    except OSError as error:
        refuse_rpc_address(error, settings)


def refuse_rpc_address(error: OSError, settings: Settings) -> NoReturn:
    """Log why gRPC cannot listen. Raises SystemExit."""
    reason = cannot_listen(error, settings.grpc_port, setting="grpc_port")
    log.error("cannot start", reason=reason)
    raise SystemExit(1) from None
