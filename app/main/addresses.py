"""What is said of the address that is listened on, or cannot be."""

from __future__ import annotations

import errno

from app.settings import variable


def address_for_people(host: str, port: int, *, tls: bool) -> str:
    """An address that a browser on this machine opens."""
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - all of them: this one is among them
        host = "localhost"
    place = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{place}:{port}"


def cannot_listen(error: OSError, host: str, port: int, *, setting: str) -> str:
    """Say which address cannot be had and why; `setting` is the one that chooses the port."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        option = f"--{setting.replace('_', '-')}"
        reason = f"address already in use; choose another port with {option} or {variable(setting)}"
    return f"cannot listen on {place}: {reason}"
