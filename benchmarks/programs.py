"""Programs that ask a server for some seconds: wrk, ab, and callers in Python, Go and Java.

Each raises RuntimeError where it is not installed, or where a request fails.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import lane
from benchmarks.lane import PLAIN, Kind
from benchmarks.load import Heard
from benchmarks.servers import BUILD, OTHERS, ROOT

CALLERS = 64

Program = Callable[[str, Path, float], Heard]
"""Asks the server at an address, with a folder for files, for some seconds."""


def by_wrk(kind: Kind) -> Program:
    """By wrk, which sends head and body in one segment."""
    return lambda url, folder, seconds: lane.ask(kind, url, folder, seconds)


def by_ab(*options: str) -> Program:
    """By ab, which speaks HTTP/1.0; answers may differ in length."""

    def ask(url: str, folder: Path, seconds: float) -> Heard:
        told = told_by([
            _installed("ab", "apache2-utils"), "-q", "-l", *options, "-c", str(CALLERS),
            "-t", str(max(1, round(seconds))), "-n", "1000000", "-T", "application/json",
            "-p", str(_body(folder)), f"{url}/predict",
        ])  # fmt: skip
        return heard_by_ab(told)

    return ask


def heard_by_ab(told: str) -> Heard:
    """Return ab's results from its output. Raises RuntimeError where a request failed."""
    said = dict(re.findall(r"^([\w -]+):\s+(\S+)", told, re.MULTILINE))
    if said.get("Failed requests") != "0" or "Non-2xx responses" in said:
        raise RuntimeError(f"ab: {told[-500:]}")
    return {
        "requests": int(said["Complete requests"]),
        "seconds": float(said["Time taken for tests"]),
    }


def by_client(command: Callable[[], Sequence[str]]) -> Program:
    """By a program that is given address, body, connections and seconds, and prints RESULT."""

    def ask(url: str, folder: Path, seconds: float) -> Heard:
        given = [f"{url}/predict", str(_body(folder)), str(CALLERS), str(seconds)]
        told = told_by([*command(), *given])
        heard: Heard = json.loads(told.rpartition("RESULT ")[2])
        return heard

    return ask


def by_python(name: str) -> Program:
    """By a caller of benchmarks.callers."""
    return by_client(lambda: [sys.executable, "-m", "benchmarks.callers", name])


def go() -> Sequence[str]:
    """Return the caller in Go, built if need be. Raises RuntimeError if it cannot be built."""
    source, program = OTHERS / "caller.go", BUILD / "caller-go"
    compiler = _installed("go", "golang-go")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        told_by([compiler, "build", "-o", str(program), str(source)])
    return [str(program)]


def java() -> Sequence[str]:
    """Return the caller in Java. Raises RuntimeError without a compiler."""
    _installed("javac", "default-jdk-headless")
    return ["java", str(OTHERS / "Caller.java")]


def _installed(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise RuntimeError(f"{program} is not installed: apt-get install {package}")
    return path


def told_by(command: Sequence[str]) -> str:
    """Return a program's output. Raises RuntimeError where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
    return done.stdout


def _body(folder: Path) -> Path:
    path = folder / "body.json"
    path.write_bytes(PLAIN[0])
    return path
