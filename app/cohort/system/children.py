"""How this process starts another Python: it imports what this one does, wherever it is started."""

import os
import sys

PYTHON = (sys.executable, "-P")
"""Begins the command: Python, which does not look for modules in the working folder."""


def python_path() -> str:
    """PYTHONPATH for it: the folders in which this process looks for modules, in the same order."""
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is the working folder
    return os.pathsep.join(paths)


KEPT_VARIABLES = ("PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "ORT_DISABLE_TELEMETRY")
"""The environment of a child, besides LC_* and the path of imports: no keys and no tokens."""


def child_environment() -> dict[str, str]:
    """The environment of a child that looks at what somebody else wrote."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith("LC_")
    }
    return {**kept, "PYTHONPATH": python_path()}
