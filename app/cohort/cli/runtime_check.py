"""Check that exactly one ONNX Runtime is installed, which packaging cannot ensure.

All its distributions install into the same folder. The last one installed overwrites the others,
and removing any breaks the rest (docs/contributing/decisions/0001).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path

PLAIN = "onnxruntime"


def runtime_problem() -> str:
    """Return the problem and the command that fixes it; "" if one ONNX Runtime is installed."""
    spec = find_spec(PLAIN)
    origin = spec and spec.origin  # None for a folder without __init__.py
    folders = [Path(origin).parents[1]] if origin else map(Path, sys.path)
    installed = list(_installed(folders))
    if not origin and not installed:
        gpu, openvino = _pinned("onnxruntime-gpu"), _pinned("onnxruntime-openvino")
        return (
            f"ONNX Runtime is not installed: {_pip('install')} {_pinned(PLAIN)} "
            f"(or {gpu} for NVIDIA's hardware, {openvino} for Intel's)"
        )
    if not origin:
        return (
            f"{installed[0]} lost its files when another ONNX Runtime was removed: "
            f"{_pip('install')} --force-reinstall --no-deps {_pinned(installed[0])}"
        )
    if len(installed) < 2:
        return ""
    wanted = next((name for name in installed if name != PLAIN), PLAIN)
    return (
        f"{' and '.join(installed)} are installed and overwrite each other: "
        f"{_pip('uninstall')} {' '.join(installed)} && {_pip('install')} {_pinned(wanted)}"
    )


def _installed(folders: Iterable[Path]) -> Iterator[str]:
    """Yield the names of the distributions that install the package.

    Only whole paths match: packages such as onnxscript contain a folder of the same name.
    """
    first_file = re.compile(rf"^{PLAIN}/__init__\.py,", re.MULTILINE)
    for folder in folders:
        for record in sorted(folder.glob("o*.dist-info/RECORD")):  # onnxruntime-…, ort-nightly-…
            if first_file.search(record.read_text(encoding="utf-8", errors="replace")):
                yield record.parent.name.partition("-")[0].replace("_", "-")


def _pip(verb: str) -> str:
    """Return a pip command, or a uv command if the environment has no pip."""
    if find_spec("pip") is not None:
        return f"{sys.executable} -m pip {verb}{' --yes' if verb == 'uninstall' else ''}"
    return f"uv pip {verb} --python {sys.executable}"


def _pinned(name: str) -> str:
    """Return Cohort's pinned requirement of this name, or the name if it is unknown."""
    try:
        own = requires("cohort") or []
    except PackageNotFoundError:
        own = []
    return next((one[0] for text in own if (one := re.match(rf"{name}==[\w.]+", text))), name)
