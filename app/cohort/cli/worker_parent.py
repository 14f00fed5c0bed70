"""`cohort serve --workers`: the parent of the worker processes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from cohort.connections.addresses import cannot_listen, listened, open_http
from cohort.connections.listeners import open_listeners
from cohort.settings import Settings
from cohort.workers.log_lines import write_line
from cohort.workers.membership import STARTING_SECONDS
from cohort.workers.parent import start_parent
from cohort.workers.passing import Kind
from cohort.workers.systemd import Systemd
from cohort.workers.worker_process import WorkerOptions

HUNG_SECONDS = 20.0
"""Default watchdog timeout of a worker; the other workers continue to serve."""


def run_workers(settings: Settings) -> NoReturn:
    """Serve with worker processes until a signal arrives."""
    listeners = {Kind.HTTP: _open(settings, "port", lambda: open_http(settings))}
    if settings.grpc_port:  # opened when a worker serves gRPC
        listeners[Kind.RPC] = _open(settings, "grpc_port", lambda: _reserve(settings))
    watchdog_seconds = (
        settings.watchdog_seconds or Systemd.of(os.environ).watchdog_seconds or HUNG_SECONDS
    )
    options = WorkerOptions(
        (sys.executable, *sys.orig_argv[1:]),
        settings.workers,
        watchdog_seconds,
        max(STARTING_SECONDS, watchdog_seconds),
        settings.drain_notice_seconds,
        settings.drain_seconds,
        settings.log_format,
    )
    write_line(
        settings.log_format,
        "info",
        "listening for HTTP",
        **listened(listeners[Kind.HTTP], settings),
        workers=settings.workers,
    )
    start_parent(listeners, options)


def _open(
    settings: Settings, name: str, opened: Callable[[], list[socket.socket]]
) -> list[socket.socket]:
    """Return the opened sockets. Logs the reason and raises SystemExit if an address is in use."""
    try:
        return opened()
    except OSError as error:
        reason = cannot_listen(error, getattr(settings, name), setting=name)
        write_line(settings.log_format, "error", "cannot start", reason=reason)
        raise SystemExit(1) from None


def _reserve(settings: Settings) -> list[socket.socket]:
    """Reserve the addresses for gRPC with sockets that accept no connections."""
    for one in open_listeners(settings.host, settings.grpc_port, backlog=1):
        one.close()  # the address is free
    return open_listeners(settings.host, settings.grpc_port, backlog=None, shared=True)
