"""Sources that are not models, and user code that prints, forks or never ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cohort_prepare.detecting import open_source
from cohort_prepare.failures import Misused
from tests.e2e.processes import quick_command
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]

ENDLESS = """
import os
from pathlib import Path

def model():
    if os.fork() == 0:
        Path("forked.pid").write_text(str(os.getpid()))
    else:
        Path("loading.pid").write_text(str(os.getpid()))
    while True:
        os.read(os.pipe()[0], 1)
"""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*quick_command(), "convert", *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ctrl_c_ends_the_users_code_and_all_that_it_forked(tmp_path: Path) -> None:
    """No process and no file of it stays."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = started(tmp_path, "endless:model", "--out", "model.onnx")
    files = [tmp_path / "forked.pid", tmp_path / "loading.pid"]
    wait_until(lambda: all(one.exists() and one.read_text() for one in files))
    pids = [int(one.read_text()) for one in files]
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130
    assert "nothing was written" in said
    wait_until(lambda: not any(map(runs, pids)))
    left = {one.name for one in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"endless.py", "forked.pid", "loading.pid"}


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A FIFO would block, and a device never end."""
    os.mkfifo(tmp_path / "model.ubj")
    for path in (str(tmp_path / "model.ubj"), "/dev/zero"):
        with pytest.raises(Misused, match="neither a file nor a folder"):
            open_source(path)


def test_framework_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    """A suffix or a folder does not suffice; the error names --from."""
    (tmp_path / "model.bin").write_bytes(b"?")
    (tmp_path / "empty").mkdir()
    for name in ("model.bin", "empty"):
        with pytest.raises(Misused, match="--from"):
            open_source(str(tmp_path / name))


def test_pickle_is_not_read_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No code in it runs."""
    monkeypatch.chdir(tmp_path)
    harm = b"cposix\nsystem\n(S'touch harmed'\ntR."
    (tmp_path / "model.pkl").write_bytes(harm)
    with pytest.raises(Misused, match="--trust-pickle"):
        open_source("model.pkl")
    assert not (tmp_path / "harmed").exists()


def test_module_of_the_user_hides_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with the user's onnx.py and numpy.py is converted all the same."""
    (tmp_path / "training.py").write_text(
        "from sklearn.linear_model import LinearRegression\n"
        "def model():\n    return LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])\n"
    )
    for name in ("onnx", "numpy", "skl2onnx"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden')")
    monkeypatch.chdir(tmp_path)
    with open_source("training:model", framework="sklearn") as source:
        source.export(tmp_path / "model.onnx")
        (outputs,) = source.run([{"input": np.array([[2.0]], np.float32)}])
    assert outputs["prediction"].round(6).tolist() == [[2.0]]
