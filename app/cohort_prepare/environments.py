"""Environments for frameworks: this one, one that the user names, or one that uv creates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import Framework


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment that has a framework.

    command: Command that starts Python; a module and its arguments follow.
    made: True if uv creates it, which may take minutes the first time.
    """

    command: tuple[str, ...]
    made: bool = False


def find_environment(
    framework: Framework, *, python: str | None = None, packages: Sequence[str] = ()
) -> Environment:
    """Return the environment for a framework.

    python: The user's interpreter; default None: this one if it has the framework, otherwise one
        that uv creates with tested versions.
    packages: Further packages that the user's module needs, in pip's syntax; default none.

    Raises Misused if there is no environment.
    """
    if python is not None:
        return Environment((*_with_missing(python, framework, packages), "-P"))
    if not packages and all(find_spec(module) for module in framework.modules):
        return Environment((sys.executable, "-P"))
    return Environment((*_alone([*framework.requirements, *packages]), "-P"), True)


def _with_missing(python: str, framework: Framework, packages: Sequence[str]) -> tuple[str, ...]:
    """Return a command for the user's Python, with missing converters added by uv."""
    missing = _missing(python, framework.modules)
    if not missing and not packages:
        return (python,)
    wanted = [one for one in framework.requirements if _module_of(one) in missing]
    return (find_uv(), "run", "--no-project", *_with(python, [*wanted, *packages]))


_PRINT_MISSING = """
import sys
from importlib.util import find_spec
print(*[module for module in sys.argv[1:] if find_spec(module) is None])
"""


@lru_cache
def _missing(python: str, modules: tuple[str, ...]) -> frozenset[str]:
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Python
            [python, "-c", _PRINT_MISSING, *modules],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Misused(f"--python {python} cannot be run as Python: {error}") from error
    return frozenset(asked.stdout.split())


_MODULES = {
    "scikit-learn": "sklearn",
    "xgboost-cpu": "xgboost",
    "tensorflow-cpu": "tensorflow",
    "paddlepaddle": "paddle",
    "optimum-onnx": "optimum",
}


def _module_of(requirement: str) -> str:
    name = re.split(r"[=<>\[ ]", requirement, maxsplit=1)[0]
    return _MODULES.get(name, name)


def _alone(requirements: Sequence[str]) -> tuple[str, ...]:
    """Return a command for a Python with these packages only, so that others change nothing."""
    torch = any(_module_of(one) == "torch" for one in requirements)
    own = any(map(os.environ.get, (*_OWN_INDEXES, PIP_LINKS)))
    cpu = ("--torch-backend", "cpu") if torch and not own else ()  # others take gigabytes
    return (find_uv(), "tool", "run", *cpu, *_with(sys.executable, requirements))


def _with(python: str, requirements: Sequence[str]) -> tuple[str, ...]:
    wanted = [part for one in requirements for part in ("--with", one)]
    links = os.environ.get(PIP_LINKS, "").split() if not os.environ.get("UV_FIND_LINKS") else []
    found = [part for one in links for part in ("--find-links", one)]
    return ("--quiet", *found, "--python", python, *wanted, "python")


_OWN_INDEXES = (
    *("UV_TORCH_BACKEND", "UV_INDEX", "UV_DEFAULT_INDEX"),
    *("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
)
"""Variables of uv that set package indexes."""

PIP_LINKS = "PIP_FIND_LINKS"
"""Variable of pip that is passed to uv, which does not read it; `make install` does the same."""


def find_uv() -> str:
    """Return the uv command. Raises Misused if it is not installed."""
    beside = Path(__file__).parents[2] / ".tools" / "bin" / "uv"
    found = shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise Misused(
            "neither the framework nor uv, which would fetch it, is installed: install uv "
            "(pip install uv), or set --python to the model's environment"
        )
    return found
