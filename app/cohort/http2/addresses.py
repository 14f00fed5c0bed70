"""gRPC's form of addresses: https://github.com/grpc/grpc/blob/master/doc/naming.md."""

from __future__ import annotations


def written_address(name: object) -> str:
    """Return the address of a socket's peer, or "" without one."""
    if not isinstance(name, tuple):
        return ""
    host, port = str(name[0]).removeprefix("::ffff:"), name[1]
    kind, written = ("ipv6", f"%5B{host}%5D") if ":" in host else ("ipv4", host)
    return f"{kind}:{written}:{port}"
