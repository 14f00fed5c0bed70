"""Mounts that only one server sees, and that go with it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.processes import Cohort


def mounted(folder: Path, script: str) -> Sequence[str]:
    """Return a command that runs a server after a shell's `script` has mounted something at "$0".

    It needs CAP_SYS_ADMIN, which root has outside of containers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", f'set -e; {script}; exec "$@"', str(folder)]


def path_outside(server: Cohort, path: Path) -> Path:
    """Return the path at which other processes find that server's `path`."""
    return Path(f"/proc/{server.process.pid}/root{path}")


def inside(server: Cohort, *command: str) -> None:
    """Run a command that sees what the server does. Raises CalledProcessError."""
    namespace = f"--mount=/proc/{server.process.pid}/ns/mnt"
    subprocess.run(["nsenter", namespace, *command], check=True)
