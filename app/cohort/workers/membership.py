"""What a worker is told by its parent when it is started: the environment and its sockets."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Self

VARIABLE = "_COHORT_WORKER"
"""Names the worker's place, its sockets and its parent. No setting: a parent alone sets it."""

PASSES_RPC = "_COHORT_WORKER_RPC"
"""Is set by parents that pass connections for gRPC, as those before did not."""

LATE_SECONDS = 1.0
"""A parent that was itself held up for so long, by a paused container, cannot tell how others did.
"""

STARTING_SECONDS = 120.0
"""How long a process may take until its first sign of life, or as long as the watchdog's time where
that is longer: it imports and reads settings and keys, on a machine that may do much else."""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Membership:
    """A worker's place among those of its parent.

    place: Which of them it is, from 0.
    count: How many there should be.
    first: Whether it is the first that the parent has started: it says what people want to read.
    port: The port that the parent listens on.
    parent: The parent's process.
    connections: The socket by which it gets connections, `cohort.workers.passing`.
    messages: The socket by which it talks to the parent, `cohort.workers.link`.
    passes_rpc: Whether connections for gRPC come that way, too.
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
        """Take what the parent left in the environment; None where this process is no worker.

        What the worker starts itself does not find it there any more.
        """
        if not (told := environment.pop(VARIABLE, "")):
            return None
        place, count, first, port, parent, connections, messages = map(int, told.split(":"))
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
        """Have the process killed when its parent ends: nobody would give it connections."""
        end_with(self.parent)


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends; raise SystemExit where it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # meanwhile
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
    """The environment of a worker that this process starts; its sockets are in the same order."""
    told = ":".join(map(str, (place, count, int(first), port, os.getpid(), *descriptors)))
    return {**environment, VARIABLE: told, PASSES_RPC: "1"}
