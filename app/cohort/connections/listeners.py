"""Listening sockets, from which an event loop accepts more than one connection at a time."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

HANDLES = 16
"""How often one socket is listened on; each costs every new connection a microsecond or two."""


def handles_of(listener: socket.socket) -> list[socket.socket]:
    """The listener, and duplicates of it, for a server each.

    libuv accepts one connection of a handle in an iteration of the loop. Where others are busy an
    iteration takes a millisecond or more: of 5,000 callers who came at once the last waited 3 to
    7 s for their first answer, and those who connect for each request never shared a run.
    """
    return [listener, *(listener.dup() for _ in range(HANDLES - 1))]


def port_of(listener: socket.socket) -> int:
    """The port that is listened on; 0: it is a Unix socket."""
    port: int = 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]
    return port


def hosts_of(text: str) -> list[str]:
    """The hosts of a setting: names and addresses between commas, those of IPv6 as they are."""
    return [one.strip().removeprefix("[").removesuffix("]") for one in text.split(",")]


def open_listeners(
    hosts: str, port: int, *, backlog: int | None, shared: bool = False
) -> list[socket.socket]:
    """Listen at each of `hosts`, all on one port; 0 is a free one.

    `::` alone is all addresses, those of IPv4 as well; beside a host of IPv4 it is those of IPv6.

    backlog: How many connections may wait to be accepted; None: the address is taken, no more.
    shared: Whether others that say so may listen there, too; default: nobody else.

    Raises OSError, whose `filename` is the host, where an address is not available.
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
    """A socket with an address; `both` is whether one of IPv6 is for IPv4, too."""
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
    """Listen on a Unix socket, in the place of one that nobody listens on any more.

    Raises OSError where it is not available.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            listener.connect(os.fspath(path))
            raise OSError(errno.EADDRINUSE, "somebody listens there already")
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
