"""`cohort serve --workers`: the parent of the processes that serve."""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from cohort.connections.addresses import cannot_listen
from cohort.settings import Settings
from cohort.workers.doors import WAITING_CONNECTIONS
from cohort.workers.parent import start_parent
from cohort.workers.passing import Kind
from cohort.workers.saying import say_line
from cohort.workers.systemd import Systemd
from cohort.workers.worker_process import WorkerOptions

HUNG_SECONDS = 20.0
"""How long a worker may give no sign of life where no setting says it: the others serve on."""


def run_workers(settings: Settings) -> NoReturn:
    """Serve by workers until a signal."""
    listener = _bind(settings, "port", settings.port)
    listener.listen(WAITING_CONNECTIONS)
    listeners = {Kind.HTTP: [listener]}
    if settings.grpc_port:  # it is listened on once a worker serves gRPC
        listeners[Kind.RPC] = [_bind(settings, "grpc_port", settings.grpc_port, shared=True)]
    port = listener.getsockname()[1]
    options = WorkerOptions(
        (sys.executable, *sys.orig_argv[1:]),
        settings.workers,
        settings.watchdog_seconds or Systemd.of(os.environ).watchdog_seconds or HUNG_SECONDS,
        settings.drain_notice_seconds,
        settings.drain_seconds,
        settings.log_format,
    )
    say_line(
        settings.log_format,
        "info",
        "listening for HTTP",
        host=settings.host,
        port=port,
        workers=settings.workers,
    )
    start_parent(listeners, options)


def _bind(settings: Settings, name: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that has the address, by itself or with others that say so, too."""
    try:
        family = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        if shared:
            socket.create_server((settings.host, port), family=family).close()  # nobody has it
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, port))
    except OSError as error:
        reason = cannot_listen(error, settings.host, port, setting=name)
        say_line(settings.log_format, "error", "cannot start", reason=reason)
        raise SystemExit(1) from None
    return bound
