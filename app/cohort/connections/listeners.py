"""Listening sockets from which an event loop accepts more than one connection at a time."""

from __future__ import annotations

import socket

HANDLES = 16
"""How often one socket is listened on; each costs every new connection a microsecond or two."""


def handles_of(listener: socket.socket) -> list[socket.socket]:
    """The listener, and duplicates of it, for a server each.

    libuv accepts one connection of a handle in an iteration of the loop. Where others are busy an
    iteration takes a millisecond or more: of 5,000 callers who came at once the last waited 3 to
    7 s for their first answer, and those who connect for each request never shared a run.
    """
    return [listener, *(listener.dup() for _ in range(HANDLES - 1))]
