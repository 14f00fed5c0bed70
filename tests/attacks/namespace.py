"""A separate network namespace for this process, which contains only loopback.

The kernel counts, for each namespace, all packets without a route and all datagrams. So it counts
all that a process in it sends, from native code and its threads as well, and no packet leaves.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP, IFF_RUNNING = 0x1, 0x40

COUNTED = ("IpOutNoRoutes", "Ip6OutNoRoutes", "UdpOutDatagrams", "Udp6OutDatagrams")
"""Packets without a route, and datagrams. Those to loopback count: a resolver may listen there."""


def enter() -> None:
    """Leave the network, before there is a second thread. Raises SystemExit where none may."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        raise SystemExit(
            f"no network namespace: {os.strerror(ctypes.get_errno())}. It takes CAP_SYS_ADMIN, as "
            "root has it outside of containers, or unprivileged user namespaces: docker run "
            "--cap-add SYS_ADMIN, or sysctl kernel.unprivileged_userns_clone=1"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", IFF_UP | IFF_RUNNING)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def sent() -> dict[str, int]:
    """Return the number of packets that tried to leave this namespace, by the kernel's names."""
    counts: dict[str, int] = {}
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        protocol, *rest = names.split()
        counts |= {
            protocol.rstrip(":") + name: int(value)
            for name, value in zip(rest, values.split()[1:], strict=True)
        }
    if (newer := Path("/proc/self/net/snmp6")).exists():  # not where IPv6 is off
        counts |= {
            name: int(value) for name, value in map(str.split, newer.read_text().splitlines())
        }
    return {name: counts.get(name, 0) for name in COUNTED}
