"""The example of a detector, a crop and a classifier, against a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.processes import ROOT, cohort
from tests.waiting import PATIENCE

EXAMPLE = ROOT / "examples/detector/example.py"


def run(*arguments: str | Path, server: str = "") -> str:
    """What the example prints."""
    environment = {**os.environ, "SERVER": server}
    done = subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        env=environment, capture_output=True, text=True, timeout=PATIENCE * 4, check=True,
    )  # fmt: skip
    return done.stdout


def test_digits_are_found_and_read(tmp_path: Path) -> None:
    """Most of them, and the classifier runs for boxes that are worth it only."""
    run("make", tmp_path / "models")
    with cohort(tmp_path / "models", tmp_path) as server:
        printed = run("compare", "40", server=server.url)
    found, right = (float(one) for one in re.findall(r"([0-9.]+)%", printed))
    assert found > 90
    assert right > 90
    counted = re.search(r"read: (\d+) of (\d+) boxes", printed)
    assert counted is not None
    read, boxes = map(int, counted.groups())
    assert 0 < read < boxes / 3
