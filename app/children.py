"""How this process starts another Python: it imports what this one does, wherever it is started."""

import os
import sys

PYTHON = (sys.executable, "-P")
"""Begins the command: Python, which does not look for modules in the working folder."""


def python_path() -> str:
    """PYTHONPATH for it: the folders in which this process looks for modules, in the same order."""
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is the working folder
    return os.pathsep.join(paths)
