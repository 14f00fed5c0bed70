"""`cohort optimize`, with its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cohort.session import open_session
from cohort_prepare.failures import Rejected
from cohort_prepare.onnx_files import model_digest, read_onnx
from cohort_prepare.optimizing import OptimizeOptions, optimize
from cohort_prepare.optimizing.worker import Worker
from cohort_prepare.steps import read_steps
from tests import onnx_models
from tests.cli.test_cli import run
from tests.waiting import PATIENCE, wait_until


def test_the_command_writes_a_model_that_says_what_was_done(tmp_path: Path) -> None:
    """The same inputs give the same bytes; the steps are in the model, the figures in the JSON."""
    path = onnx_models.save_with_external_data(
        onnx_models.mlp(features=64, hidden=64), tmp_path / "model.onnx"
    )
    outs = [tmp_path / "one" / "model.onnx", tmp_path / "two" / "model.onnx"]
    options = ["--steps", "fp16", "--batch-sizes", "1,4", "--budget", "0.1"]
    ended = run("optimize", str(path), "--out", str(outs[0]), *options, "--json")
    assert ended.exit_code == 0, ended.stderr
    optimize(path, outs[1], options=OptimizeOptions(steps=("fp16",), sizes=(1,), budget=0.1))
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert [one.name for one in outs[0].parent.iterdir()] == ["model.onnx"]
    said = json.loads(ended.stdout)
    assert (said["command"], said["good"], said["digest"]) == (
        *("optimize", True),
        model_digest(outs[0]),
    )
    (step,) = said["steps"]
    assert (step["step"], step["kept"]) == ("fp16", True)
    assert sorted(step["measured"]["runs"]) == ["1", "4"]
    (record,) = read_steps(read_onnx(outs[0]))
    assert (record.step, record.before) == ("optimize", model_digest(path))
    assert record.options == {"step": "fp16"}
    x = np.eye(64, dtype=np.float32)
    assert np.allclose(
        open_session(outs[0]).run({"x": x})[0], open_session(path).run({"x": x})[0], atol=0.01
    )


def test_nothing_gained_leaves_the_model(tmp_path: Path) -> None:
    """If no step finds anything to do, the model is written byte for byte."""
    path = onnx_models.save(onnx_models.identity(), tmp_path / "model.onnx")
    done = optimize(path, tmp_path / "out.onnx", options=OptimizeOptions(steps=("fuse", "bf16")))
    assert [one.kept for one in done.steps] == [False, False]
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()


def test_files_for_phones(tmp_path: Path) -> None:
    """Two kinds of files run in ONNX Runtime, and needed operators are listed with their types."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    folder = tmp_path / "phone"
    options = OptimizeOptions(steps=(), ort_format=folder)
    done = optimize(path, tmp_path / "out.onnx", options=options)
    assert sorted(folder.iterdir()) == list(done.ort_files)
    assert [file.name for file in done.ort_files] == [
        "model.ort",
        "model.required_operators_and_types.config",
        "model.required_operators_and_types.with_runtime_opt.config",
        "model.with_runtime_opt.ort",
    ]
    listed = done.ort_files[1].read_text()
    assert "FusedGemm" in listed or "Gemm" in listed
    assert str(tmp_path) not in listed


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (b"no model", [], "is text, not ONNX"),
        (None, [], "not found"),
        (b"", ["--steps", "slin"], "did you mean 'slim'"),
        (b"", ["--batch-sizes", "0"], "1,8,32"),
        (b"", ["--model-type", "berd"], "did you mean 'bert'"),
    ],
)
def test_wrong_use_is_said(
    tmp_path: Path, content: bytes | None, options: list[str], said: str
) -> None:
    """Wrong arguments exit with 2, print one error as JSON, and write no file."""
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    out = tmp_path / "out.onnx"
    ended = run("optimize", str(tmp_path / "model.onnx"), "--out", str(out), *options, "--json")
    assert ended.exit_code == 2, ended.stderr
    assert said in json.loads(ended.stdout)["error"]
    assert not out.exists()


def test_an_endless_model_is_ended(tmp_path: Path) -> None:
    """It is ended at the time limit and leaves no file."""
    path = onnx_models.save(onnx_models.endless(), tmp_path / "model.onnx")
    with pytest.raises(Rejected, match=r"its share of the total 0\.5 s"):
        optimize(path, tmp_path / "out.onnx", options=OptimizeOptions(seconds=0.5))
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


def test_all_steps_together_are_bounded(tmp_path: Path) -> None:
    """A model whose every step is endless ends at the total limit, not at one for each step."""
    worker = Worker(tmp_path, 0.5)
    path = str(onnx_models.save(onnx_models.endless(), tmp_path / "model.onnx"))
    for parts in (2, 1):
        worker.share_time(parts)
        with pytest.raises(Rejected, match=r"the total 0\.5 s"):
            worker.ask("check_original", path=path, cases="")
    worker.share_time(1)
    with pytest.raises(Rejected, match=r"the total 0\.5 s"):
        worker.ask("rewrite", step="slim", path=path, out="", opset=0, model_type="bert")


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """The process that works ends with the command; exit 130, and no half model."""
    path = onnx_models.save(onnx_models.endless(), tmp_path / "model.onnx")
    command = [*_COMMAND, str(path), "--out", str(tmp_path / "out.onnx")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_until(lambda: _child_of(process.pid) is not None)
    child = _child_of(process.pid)
    os.kill(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, printed
    assert "nothing was written" in printed
    assert child is not None
    wait_until(lambda: not Path(f"/proc/{child}").exists())
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


_COMMAND = [sys.executable, "-P", "-m", "cohort", "optimize"]


def _child_of(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None
