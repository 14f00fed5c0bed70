"""A server that can write nowhere, whose user has no home, as some clusters run containers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.chaos.namespaces import mounted
from tests.e2e.processes import COMMAND, ROOT, free_port

READ_ONLY = f"""
mount --make-rprivate /
for folder in /tmp /var/tmp '{ROOT}'; do
    mount --bind "$folder" "$folder"
    mount -o remount,bind,ro "$folder"
done""".strip()
"""Shell commands that leave a server without a temporary folder."""

NOBODY = (
    *("setpriv", "--reuid=1000650000", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
"""Runs it for a user who has no home, and who may read the checkout wherever it is."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has namespaces of mounts")
def test_a_server_that_can_write_nowhere_becomes_ready(tmp_path: Path) -> None:
    """What it cannot keep would be a warning; before, the start ended by a traceback."""
    kept = {"PATH", "PYTHONPATH", "LANG"}
    with subprocess.Popen(
        [*mounted(tmp_path / "mounts", READ_ONLY), *NOBODY, *COMMAND, "serve"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if name in kept},
            "COHORT_MODELS": "/var/tmp",
            "COHORT_ALLOW_EMPTY": "1",
            "COHORT_PORT": str(free_port()),
            "COHORT_GRPC_PORT": "0",
            "COHORT_DRAIN_NOTICE_SECONDS": "0",
        },
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            if '"event": "ready"' in line:
                process.terminate()
    assert process.returncode == 0, "".join(lines)
