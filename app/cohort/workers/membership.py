"""The information that a worker receives at its start, in the environment and as sockets."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Self

VARIABLE = "_COHORT_WORKER"
"""Contains the worker's place, its sockets and its parent. Set only by a parent; not a setting."""

PASSES_RPC = "_COHORT_WORKER_RPC"
"""Set by parents that pass gRPC connections; parents of older releases do not set it."""

LATE_SECONDS = 1.0
"""After a pause of this length, of a container for example, a parent cannot judge workers' delays.
"""

STARTING_SECONDS = 120.0
"""Time for a process's first sign of life; the watchdog's time applies if it is longer.

The process imports modules and reads settings and keys, on a machine that may be busy.
"""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Membership:
    """A worker's place among those of its parent.

    place: Its number, from 0.
    count: The configured number of workers.
    first: True for the first worker that the parent started: it logs the lines for people.
    port: The port that the parent listens on.
    parent: The parent's process.
    connections: The socket that receives connections, `cohort.workers.passing`.
    messages: The socket for messages with the parent, `cohort.workers.link`.
    passes_rpc: True if gRPC connections also come over `connections`.
    """

    place: int
    count: int
    first: bool
    port: int
    parent: int
    connections: socket.socket
    messages: socket.socket
    passes_rpc: bool = False

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Remove and return the parent's values in the environment; None if this is not a worker.

        Child processes of the worker do not inherit them.
        """
        if not (value := environment.pop(VARIABLE, "")):
            return None
        place, count, first, port, parent, connections, messages = map(int, value.split(":"))
        for descriptor in (connections, messages):
            os.set_inheritable(descriptor, False)
        return cls(
            place,
            count,
            bool(first),
            port,
            parent,
            socket.socket(fileno=connections),
            socket.socket(fileno=messages),
            bool(environment.pop(PASSES_RPC, "")),
        )

    def follow_parent(self) -> None:
        """Let the kernel kill the process when its parent ends: no connections would arrive."""
        end_with(self.parent)


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. Raises SystemExit if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended
        raise SystemExit(1)


def environment_of(
    place: int,
    count: int,
    descriptors: tuple[int, int],
    environment: Mapping[str, str],
    *,
    first: bool,
    port: int,
) -> dict[str, str]:
    """Return the environment of a worker; `descriptors` are its connections and messages."""
    value = ":".join(map(str, (place, count, int(first), port, os.getpid(), *descriptors)))
    return {**environment, VARIABLE: value, PASSES_RPC: "1"}
