"""Listening sockets that let an event loop accept several connections at a time."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

HANDLES = 16
"""Number of handles per socket. Each costs every new connection 1 to 2 µs."""


def handles_of(listener: socket.socket) -> list[socket.socket]:
    """Return the listener and duplicates of it, for one server each.

    libuv accepts one connection per handle in each iteration of the loop. On a busy loop an
    iteration takes 1 ms or more. When 5,000 clients connected at once, the last waited 3 to 7 s
    for its first answer. Clients that connect for each request never shared a run.
    """
    return [listener, *(listener.dup() for _ in range(HANDLES - 1))]


def port_of(listener: socket.socket) -> int:
    """Return the listener's port, or 0 for a Unix socket."""
    port: int = 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]
    return port


def hosts_of(text: str) -> list[str]:
    """Return the hosts of a setting: names and addresses between commas. IPv6 may have brackets."""
    return [one.strip().removeprefix("[").removesuffix("]") for one in text.split(",")]


def open_listeners(
    hosts: str, port: int, *, backlog: int | None, shared: bool = False
) -> list[socket.socket]:
    """Listen on each of `hosts`, all with the same port. Port 0 chooses a free one.

    `::` alone includes all IPv4 addresses. Together with an IPv4 host it means IPv6 only.

    backlog: Connections that may wait to be accepted. None: only reserve the address.
    shared: True to let other processes with this option listen on the same address. Default: False.

    Raises OSError, whose `filename` is the host, if an address is not available.
    """
    listeners: list[socket.socket] = []
    names = hosts_of(hosts)
    both = names == ["::"] and socket.has_dualstack_ipv6()
    for host in names:
        try:
            listener = _bind(host, port, shared=shared, both=both)
            listeners.append(listener)
            if backlog is not None:
                listener.listen(backlog)
        except OSError as error:
            for one in listeners:
                one.close()
            raise OSError(error.errno, error.strerror or str(error), host) from None
        port = port or port_of(listener)
    return listeners


def _bind(host: str, port: int, *, shared: bool, both: bool) -> socket.socket:
    """Return a socket with an address. `both`: an IPv6 socket also accepts IPv4."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def open_unix_listener(path: Path, *, backlog: int) -> socket.socket:
    """Listen on a Unix socket. Replaces a socket that no process listens on.

    Raises OSError if it is not available.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            listener.connect(os.fspath(path))
            raise OSError(errno.EADDRINUSE, "another process already listens on this socket")
        listener.close()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        listener.bind(os.fspath(path))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None
    return listener
