"""What docs/reference/v2.md shows is what happens."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import MODELS, ROOT, Cohort, cohort

PAGE = Path(ROOT, "docs/reference/v2.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models with an admin token."""
    with cohort(MODELS, tmp_path_factory.mktemp("docs"), admin_token="open-sesame") as started:
        yield started


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands are curl's")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][:50])
def test_the_commands_give_what_the_page_says(server: Cohort, block: str) -> None:
    """Run as they are, but for the address; every number counts as any."""
    lines = block.splitlines()
    commands = "\n".join(line for line in lines if not line.startswith("#"))
    shown = "".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    done = subprocess.run(
        ["bash", "-ec", commands.replace("localhost:8000", server.url)],
        env={**os.environ, "COHORT_ADMIN_TOKEN": "open-sesame"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert any_number(done.stdout) == any_number(shown)


def any_number(text: str) -> str:
    """Scores differ in their last digit from one machine to another."""
    return re.sub(r"\d+\.\d+", "0.0", text)
