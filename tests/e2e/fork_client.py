"""Run `cohort` in a forked process: `python -IS fork_client.py FOLDER ARGUMENT ...`.

It replaces the command if a test starts a program by its name. The forked process has this one's
arguments, working folder, environment and standard streams. This one passes signals on and ends
with the forked process's exit status. If this one is killed, so is the forked one.

FOLDER has the sockets of fork servers (`tests.e2e.forking`). This imports few modules, so that it
starts in a few hundredths of a second.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

COHORT = "cohort"
"""The module that is the command `cohort`."""

SHARED = "FORK_SERVERS"
"""The environment variable with the folder of fork servers that several processes share."""

ENDED = "the fork server has ended"

PASSED_ON = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
)


def ask(
    folder: str,
    arguments: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    streams: Sequence[int],
    module: str = COHORT,
    new_session: bool = False,
) -> tuple[int, socket.socket]:
    """Have a fork server run a module; return the process id and a socket that reports its end.

    streams: Descriptors of its standard input, output and error.

    Raises AssertionError if it did not start.
    """
    request = {
        "module": module,
        "arguments": [*arguments],
        "cwd": cwd,
        "env": {**env},
        "new_session": new_session,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with open(os.memfd_create("request"), "w+b") as file:  # noqa: PTH123 - it has no path
            file.write(json.dumps(request).encode())
            file.seek(0)
            connection.connect(f"{folder}/{env.get('PYTHONHASHSEED', 'random')}")
            socket.send_fds(connection, [b"fork"], [*streams, file.fileno()])
        return number_of(receive(connection), b"started"), connection
    except OSError as error:
        connection.close()
        raise AssertionError(ENDED) from error
    except AssertionError:
        connection.close()
        raise


def receive(connection: socket.socket) -> bytes:
    """Return the next message of a fork server; an empty one where it has ended."""
    try:
        return connection.recv(64)
    except ConnectionError:
        return b""


def number_of(message: bytes, event: bytes) -> int:
    """Return the number in a message about an event: a process that never started has no id."""
    told, _, number = message.partition(b" ")
    assert told == event, message or ENDED
    return int(number)


def main(folder: str, *arguments: str) -> None:
    """Stand in for `cohort` with these arguments."""
    passed_on = {one for one in PASSED_ON if signal.getsignal(one) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    here = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
    pid, connection = ask(folder, arguments, cwd=here, env=os.environ, streams=range(3))

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for one in passed_on:
        signal.signal(one, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    message = receive(connection)
    if not message:
        pass_on(signal.SIGKILL, None)
    status = number_of(message, b"ended")
    if status < 0:
        with suppress(OSError):  # there is nothing to set for SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
