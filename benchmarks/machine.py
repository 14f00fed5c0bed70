"""The machine that the numbers were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

from benchmarks.servers import ROOT, SERVERS


def describe() -> dict[str, str]:
    """Machine and versions, in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    if (ROOT / "COMMIT").exists():  # an exported tree, as `git archive` makes it
        commit = (ROOT / "COMMIT").read_text().strip()
    named = ("onnxruntime-gpu", "onnxruntime", "numpy", "fastapi", "uvicorn", "uvloop", "httptools")
    found = []
    for name in named:
        try:
            found.append(f"{name} {version(name)}")
        except ModuleNotFoundError:
            continue
    return {
        "machine": f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "kernel": "Linux " + ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "versions": ", ".join(found),
        "others": ", ".join(
            package.replace("==", " ")
            for one in SERVERS.values()
            for package in (one.packages or one.node_packages)[:1]
        ),
        "wrk": _wrk(),
        "cohort": commit,
    }


def _wrk() -> str:
    if not shutil.which("wrk"):  # not every benchmark needs it
        return "not installed"
    said = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout
    return said.split("[")[0].strip()
