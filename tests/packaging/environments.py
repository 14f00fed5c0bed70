"""Environments to install Cohort into, made in a second: what it needs is linked, not fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

from tests.e2e.processes import ROOT

RUNTIME = "onnxruntime"


def build_wheel(folder: Path) -> Path:
    """Return the wheel that `make wheel` writes."""
    subprocess.run(["make", "wheel", f"DIST={folder}"], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """An empty environment, into which a wheel is installed, and links to what it requires.

    site: The folder of its packages.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
        self.python = folder / "bin" / "python"
        self.cohort = folder / "bin" / "cohort"
        quiet = [uv, "--quiet", "--offline"]
        subprocess.run(
            [*quiet, "venv", "--no-project", "--python", sys.executable, folder], check=True
        )
        subprocess.run(
            [*quiet, "pip", "install", "--no-deps", "--python", self.python, wheel], check=True
        )
        (self.site,) = folder.glob("lib/python*/site-packages")
        for name in sorted(_required(wheel)):
            self.link(distribution(name))

    def link(self, source: Distribution) -> None:
        """Link all that a distribution installed."""
        for name in {file.parts[0] for file in source.files or () if file.parts[0] != ".."}:
            there = Path(str(source.locate_file(name)))
            if there.name != "__pycache__" and not (self.site / name).exists():
                (self.site / name).symlink_to(there)

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run the command as a shell there would."""
        ours = ("COHORT_", "PYTHONPATH")
        clean = {name: one for name, one in os.environ.items() if not name.startswith(ours)}
        return subprocess.run(
            [self.cohort, *arguments],
            cwd=cwd, env=clean, capture_output=True, text=True, check=False,
        )  # fmt: skip


def _required(wheel: Path) -> set[str]:
    """The distributions that a wheel requires, and those that these do, but for the runtime."""
    with ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    prefix = "Requires-Dist: "
    waiting = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    found: set[str] = set()
    for name in _names(waiting):
        if name not in found and not name.startswith(RUNTIME):
            found.add(name)
            waiting += distribution(name).requires or ()
    return found


def _names(requirements: list[str]) -> Iterator[str]:
    """Yield the names of the requirements needed here, without extras; the list may grow."""
    for text in requirements:
        requirement = Requirement(text)
        wanted = requirement.extras or {""}
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            yield requirement.name.lower()
            for extra in wanted - {""}:
                requirements += _of_extra(requirement.name, extra)


def _of_extra(name: str, extra: str) -> list[str]:
    """Return the requirements that an extra adds, so that they count as required."""
    return [
        text.partition(";")[0]
        for text in distribution(name).requires or ()
        if (marker := Requirement(text).marker) is not None
        and marker.evaluate({"extra": extra})
        and not marker.evaluate({"extra": ""})
    ]
