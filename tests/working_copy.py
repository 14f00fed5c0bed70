"""A copy of this working tree, as a fresh checkout of it would be."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import copy

from tests.e2e.processes import ROOT


def copy_working_tree(into: Path) -> None:
    """Copy the files that git knows, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, into / name)
