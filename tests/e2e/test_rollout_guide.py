"""docs/guide/rollout.md: what stands there to copy is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import httpx

from tests.e2e.processes import MODELS, ROOT, cohort

PAGE = (ROOT / "docs/guide/rollout.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SERVE = "cohort serve\n"


def test_the_guides_commands_work_from_the_first_to_the_last(tmp_path: Path) -> None:
    """In their order, on the models as they are in a checkout, against a server that follows the
    same file and the same state.
    """
    copytree(MODELS, tmp_path / "models")
    command = tmp_path / "bin" / "cohort"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m app "$@"\n')
    command.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COHORT_")},
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def run(blocks: list[str], port: str) -> str:
        script = "\n".join([BLOCKS[0].split("cohort rollout")[0], *blocks])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script.replace(":8000", f":{port}")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    at = BLOCKS.index(SERVE)
    run(["\n".join(BLOCKS[0].splitlines()[2:]), *BLOCKS[1:at]], "0")
    file = tmp_path / "rollouts.yaml"
    with cohort(tmp_path / "models", tmp_path, rollouts=file, admin_token="secret") as server:
        said = run(BLOCKS[at + 1 :], server.url.rpartition(":")[2])
        described = httpx.get(f"{server.url}/models/digits").json()
    assert "callers move from stable to canary" in said
    assert "rolled back: by an operator, since" in said
    assert "40 compared" in said
    assert file.read_text() == ""
    assert not list((tmp_path / "state").rglob("*.json"))
    assert described["name"] == "digits"
