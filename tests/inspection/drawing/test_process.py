"""The process that draws one model."""

from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cohort.errors import LoadFailed
from cohort.inspection.drawing import DrawingProcess
from cohort.inspection.drawing import process as module
from tests.e2e.processes import MODELS
from tests.waiting import PATIENCE, wait_until

DIGITS = MODELS / "digits/1/model.onnx"


def test_it_draws_with_shapes_that_the_file_lacks() -> None:
    """ONNX Runtime infers the shapes, for any number of rows."""
    drawn = json.loads(gzip.decompress(DrawingProcess(DIGITS, {"node_relu": "cpu"}).run()))
    (graph,) = drawn["graphs"]
    relu = next(node for node in graph["nodes"] if node["name"] == "node_relu")
    assert relu["provider"] == "cpu"
    assert graph["values"][relu["out"][0]] == ["relu", "FP32 [N, 16, 8, 8]"]


def test_what_is_no_model_is_a_failed_load(tmp_path: Path) -> None:
    """The error states the reason, however the process ended."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(LoadFailed, match="no longer the protobuf of a model"):
        DrawingProcess(path, {}).run()


@pytest.mark.parametrize(("signal", "times"), [("XCPU", 1), ("KILL", 1), ("SEGV", 2)])
def test_what_takes_too_much_is_not_tried_again(
    signal: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails over the types is, without them."""
    began = tmp_path / "began"
    monkeypatch.setattr(
        "cohort.system.jobs.PYTHON", ["sh", "-c", f"echo >> {began}; kill -{signal} $$"]
    )
    with pytest.raises(LoadFailed, match=f"ended the process \\(SIG{signal}\\)"):
        DrawingProcess(DIGITS, {}).run()
    assert began.read_text().count("\n") == times


def test_a_killed_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it works raises an error and is not started again."""
    began = tmp_path / "began"
    monkeypatch.setattr(
        "cohort.system.jobs.PYTHON", ["sh", "-c", f"echo >> {began}; exec sleep 3600"]
    )
    process = DrawingProcess(DIGITS, {})
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(process.run)
        wait_until(began.exists)
        process.kill()
        with pytest.raises(LoadFailed, match=r"stopping|SIGKILL"):
            run.result(PATIENCE)
    assert began.read_text().count("\n") == 1


def test_one_that_is_killed_before_it_began_does_not_begin() -> None:
    """It raises an error that names the stop."""
    process = DrawingProcess(DIGITS, {})
    process.kill()
    with pytest.raises(LoadFailed, match="stopping"):
        process.run()


def test_a_file_that_cannot_be_read_to_its_end_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is a pipe without a writer; the process ends with a reason."""
    monkeypatch.setattr(module, "MAX_SECONDS", 0.5)
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(LoadFailed, match=r"more than 0\.5 s"):
        DrawingProcess(tmp_path / "model.onnx", {}).run()
