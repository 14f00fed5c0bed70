"""What is said of the address that is listened on, or cannot be."""

from __future__ import annotations

import errno
import socket
from typing import NoReturn

import structlog

from cohort.settings import Settings, variable

log = structlog.get_logger("cohort")


def address_for_people(host: str, port: int, *, tls: bool) -> str:
    """An address that a browser on this machine opens."""
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - all of them: this one is among them
        host = "localhost"
    place = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{place}:{port}"


def cannot_listen(error: OSError, host: str, port: int, *, setting: str) -> str:
    """Say which address cannot be had and why; `setting` is the one that chooses the port."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        option = f"--{setting.replace('_', '-')}"
        reason = f"address already in use; choose another port with {option} or {variable(setting)}"
    return f"cannot listen on {place}: {reason}"


def check_rpc_address(settings: Settings) -> None:
    """Raise SystemExit, after logging why, where gRPC could not be listened for just now."""
    host, port = settings.host, settings.grpc_port
    if not port:
        return
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        refuse_rpc_address(error, settings)


def refuse_rpc_address(error: OSError, settings: Settings) -> NoReturn:
    """Log why gRPC cannot be listened for. Raises SystemExit."""
    reason = cannot_listen(error, settings.host, settings.grpc_port, setting="grpc_port")
    log.error("cannot start", reason=reason)
    raise SystemExit(1) from None
