"""The checks that a change needs, by the kinds of its files."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tools import ROOT
from tools.prose.passages import has_text

FEW = 8
"""Test modules for each process: to import everything once more takes longer than to run fewer."""


class Check(NamedTuple):
    """A command, and its name for people."""

    name: str
    command: Sequence[str]


def find_checks(changed: Sequence[str]) -> Iterator[Check]:
    """Yield the linters and type checkers for changed files that exist, by their paths."""
    python = [path for path in changed if path.endswith(".py")]
    if "pyproject.toml" in changed:  # it has the rules for all
        yield Check("ruff check", [_program("ruff"), "check"])
    elif python:
        yield Check("ruff check", [_program("ruff"), "check", "--force-exclude", *python])
    if python:
        formatted = [_program("ruff"), "format", "--check", "--force-exclude", *python]
        yield Check("ruff format", formatted)
    if typed := [path for path in python if _is_typed(path)]:
        yield Check("mypy", [_program("mypy"), *typed])
    if yaml := [path for path in changed if path.endswith((".yml", ".yaml"))]:
        yield Check("yamllint", [_program("yamllint"), "--strict", *yaml])
    if shell := [path for path in changed if path.endswith(".sh") or path == ".ci/run"]:
        yield Check("shellcheck", [_program("shellcheck"), *shell])
    if images := [path for path in changed if path.endswith("Dockerfile")]:
        yield Check("hadolint", [_program("hadolint"), *images])
    if texts := [path for path in changed if has_text(path)]:
        yield Check("prose", [sys.executable, "-m", "tools.prose", *texts])


def find_unchecked(changed: Sequence[str]) -> list[str]:
    """Return the changed files that neither a check nor a test of `make quick` looks at."""
    looked_at = (".py", ".yml", ".yaml", ".sh", "Dockerfile", ".md", "pyproject.toml")
    return [path for path in changed if not path.endswith(looked_at) and path != ".ci/run"]


def pytest_command(tests: Sequence[str]) -> Check:
    """Return the command that runs test modules."""
    processes = min(ceil(len(tests) / FEW), len(os.sched_getaffinity(0)) + 2)
    many = ["-n", str(processes), "--dist", "worksteal"] if processes > 1 else []
    return Check("pytest", [sys.executable, "-m", "pytest", "-q", *many, *tests])


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _is_typed(path: str) -> bool:
    """Return True if mypy checks a file, by its configuration."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    place = PurePosixPath(path)
    return any(place.is_relative_to(one) for one in settings["files"]) and not any(
        re.search(pattern, path) for pattern in settings["exclude"]
    )
