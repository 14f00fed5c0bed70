"""PyTorch in an environment that uv makes; tests/converters has the other frameworks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np

from cohort.session import open_session
from tests.e2e.processes import ROOT, quick_command

SOURCE = ROOT / "tests" / "converters" / "sources" / "pytorch_digits.py"


def test_torch_module_is_converted_with_open_dimensions(tmp_path: Path) -> None:
    """PyTorch is not installed for the tests: the command has uv fetch it."""
    (tmp_path / SOURCE.name).write_text(SOURCE.read_text())
    done = subprocess.run(
        [
            *(*quick_command(), "convert", "pytorch_digits:summed", "--json"),
            *("--from", "pytorch", "--dynamic", "x:1=length", "--no-verify", "--out", "m.onnx"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["versions"]["torch"].startswith("2.13.")
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    (total,) = open_session(tmp_path / "m.onnx").run({"x": rows})
    np.testing.assert_array_equal(total, [[6.0], [22.0], [38.0]])
