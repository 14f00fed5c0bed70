"""Where a framework runs: in this environment, one that the user names, or one that uv makes."""

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
    """A Python that has a framework.

    command: What starts it; a module with arguments follows.
    made: Whether uv makes it, which may take minutes the first time.
    """

    command: tuple[str, ...]
    made: bool = False


def find_environment(
    framework: Framework, *, python: str | None = None, packages: Sequence[str] = ()
) -> Environment:
    """The environment for a framework.

    python: The user's own interpreter; default None: this one where it has all that is needed, else
        one that uv makes with the versions known to work.
    packages: What the user's module needs besides, as pip writes it; default nothing.

    Raises Misused where there is none.
    """
    if python is not None:
        return Environment((*_with_missing(python, framework, packages), "-P"))
    if not packages and all(find_spec(module) for module in framework.modules):
        return Environment((sys.executable, "-P"))
    return Environment((*_alone([*framework.requirements, *packages]), "-P"), True)


def _with_missing(python: str, framework: Framework, packages: Sequence[str]) -> tuple[str, ...]:
    """The user's Python, with what it lacks of the framework's converters on top of it."""
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
        raise Misused(f"--python {python} does not start as a Python: {error}") from error
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
    """A Python with these and nothing else: what is installed here changes no conversion."""
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
"""Variables of uv by which people say where their packages come from."""

PIP_LINKS = "PIP_FIND_LINKS"
"""The one of pip's that is heeded: uv reads none, and `make install` heeds it, too."""


def find_uv() -> str:
    """The command uv. Raises Misused where there is none."""
    beside = Path(__file__).parents[2] / ".tools" / "bin" / "uv"
    found = shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise Misused(
            "the framework is not installed here, and neither is uv, which would fetch it: install "
            "uv (pip install uv), or name your model's environment with --python"
        )
    return found
