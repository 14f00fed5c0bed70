"""`cohort serve --workers`: the parent of the processes that serve."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from cohort.connections.addresses import cannot_listen, listened, open_http
from cohort.connections.listeners import open_listeners
from cohort.settings import Settings
from cohort.workers.membership import STARTING_SECONDS
from cohort.workers.parent import start_parent
from cohort.workers.passing import Kind
from cohort.workers.saying import say_line
from cohort.workers.systemd import Systemd
from cohort.workers.worker_process import WorkerOptions

HUNG_SECONDS = 20.0
"""How long a worker may give no sign of life where no setting says it: the others serve on."""


def run_workers(settings: Settings) -> NoReturn:
    """Serve by workers until a signal."""
    listeners = {Kind.HTTP: _open(settings, "port", lambda: open_http(settings))}
    if settings.grpc_port:  # it is listened on once a worker serves gRPC
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
    say_line(
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
    """What is `opened`. Raises SystemExit, after saying why, where an address is not available."""
    try:
        return opened()
    except OSError as error:
        reason = cannot_listen(error, getattr(settings, name), setting=name)
        say_line(settings.log_format, "error", "cannot start", reason=reason)
        raise SystemExit(1) from None


def _reserve(settings: Settings) -> list[socket.socket]:
    """Sockets that have the addresses for gRPC, and take no connections."""
    for one in open_listeners(settings.host, settings.grpc_port, backlog=1):
        one.close()  # nobody has it
    return open_listeners(settings.host, settings.grpc_port, backlog=None, shared=True)
