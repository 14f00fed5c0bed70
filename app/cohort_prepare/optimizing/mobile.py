"""Export to ONNX Runtime's ORT format for mobile and edge, with the config of a reduced build.

Runs in a child process with ONNX Runtime's tools.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cohort.comparing import Pair, Rounding, explain
from cohort.profiling import find_trial
from cohort.session import open_session
from cohort.tensors import Arrays
from cohort_prepare.evaluating.cases import run_named
from cohort_prepare.failures import Rejected

_SAME = Rounding(1e-4, 0.01)


def export_ort(path: Path, folder: Path, target: str) -> list[str]:
    """Write the model at `path` to `folder`; return the names of the files.

    model.ort: Optimized for the CPU provider.
    model.with_runtime_opt.ort: Keeps optimizations that NNAPI, CoreML or XNNPACK may undo at
        runtime.
    required_operators_and_types.config (for each): Argument of `--include_ops_by_config` of ONNX
        Runtime's build, which then has only these operators; types are reduced with
        `--enable_reduced_operator_type_support`.

    target: "arm" or "amd64". Raises Rejected if a file's outputs differ from the model's.
    """
    from onnxruntime.tools.convert_onnx_models_to_ort import (
        OptimizationStyle,
        convert_onnx_models_to_ort,
    )

    with TemporaryDirectory(dir=folder) as work:
        source = Path(work) / "model.onnx"
        _copy_with_weights(path, source)
        made = Path(work) / "made"
        os.environ["ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL"] = "all"
        convert_onnx_models_to_ort(
            source,
            output_dir=made,
            optimization_styles=[OptimizationStyle.Fixed, OptimizationStyle.Runtime],
            target_platform=target,
            enable_type_reduction=True,
        )
        for model in sorted(made.glob("*.ort")):
            _check_same(path, model)
        for config in made.glob("*.config"):
            _drop_comments(config)
        for file in made.iterdir():
            shutil.move(file, folder / file.name)
    return sorted(file.name for file in folder.iterdir())


def _drop_comments(config: Path) -> None:
    """Remove comments, which contain the folder's path."""
    lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
    config.write_text("".join(one for one in lines if not one.startswith("#")), encoding="utf-8")


def _copy_with_weights(path: Path, out: Path) -> None:
    """Write the model as a single file, since the tools cannot find its external data."""
    from cohort_prepare.onnx_files import read_onnx

    try:
        out.write_bytes(read_onnx(path).SerializeToString(deterministic=True))
    except ValueError as error:
        raise Rejected("the model exceeds the 2 GiB limit of .ort files") from error


def _check_same(path: Path, converted: Path) -> None:
    session = open_session(path)
    trial = find_trial(session.run, session.inputs)
    if trial.problem:
        return
    feeds = trial.feeds(1)
    expected = run_named(session, feeds)
    if reason := explain(Pair(expected, _run_ort(converted, feeds)), _SAME):
        raise Rejected(f"the outputs of {converted.name} differ from the model's: {reason}")


def _run_ort(path: Path, feeds: Arrays) -> dict[str, Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, dict(feeds))), strict=True))
