"""What is said where an address cannot be listened on."""

from __future__ import annotations

import errno

from app.settings import variable


def cannot_listen(error: OSError, host: str, port: int, *, setting: str) -> str:
    """Say which address cannot be had and why; `setting` is the one that chooses the port."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        option = f"--{setting.replace('_', '-')}"
        reason = f"address already in use; choose another port with {option} or {variable(setting)}"
    return f"cannot listen on {place}: {reason}"
