"""A namespace of processes and networks for a program that starts many processes."""

from __future__ import annotations

from collections.abc import Sequence

_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def in_namespace(command: str) -> Sequence[str]:
    """Return the command that runs a shell command with its own `lo` (root).

    All its processes end with the thread that starts it, however that ends.
    """
    return (
        *("setpriv", "--pdeathsig", "KILL", *_UNSHARE),
        *("bash", "-c", f"ip link set lo up; exec {command}"),
    )
