"""Jobs that rewrite and time models, run by `Worker` in child processes.

A crash of a library or model does not end the command. Functions import the libraries that they
need, since each job needs few.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any


def check_original(path: str, cases: str) -> dict[str, Any]:
    """Check that a model runs, on `cases` if given; return the number of its nodes."""
    from cohort_prepare.onnx_files import read_onnx
    from cohort_prepare.optimizing.measuring import check_runs

    nodes = len(read_onnx(Path(path)).graph.node)
    check_runs(Path(path), Path(cases) if cases else None)
    return {"nodes": nodes}


def rewrite(step: str, path: str, out: str, opset: int, model_type: str) -> dict[str, Any]:
    """Apply a step and write the model to `out`, or return why it cannot change the model."""
    from cohort_prepare.onnx_files import write_onnx_to
    from cohort_prepare.optimizing.rewriting import NothingToDo, apply_step

    try:
        done = apply_step(step, Path(path), opset=opset, model_type=model_type)
    except NothingToDo as reason:
        return {"nothing": str(reason)}
    write_onnx_to(done.model, Path(out))
    return {
        "what": done.what,
        "versions": dict(done.versions),
        "warnings": list(done.warnings),
        "nodes": len(done.model.graph.node),
    }


def measure_steps(
    before: str, after: str, steps: list[str], sizes: list[int], budget: float, cases: str
) -> dict[str, Any]:
    """Compare and time two models; return a `MeasuredChange`."""
    from cohort_prepare.optimizing.choices import OPTIMIZE_STEPS
    from cohort_prepare.optimizing.measuring import measure_change

    measured = measure_change(
        Path(before),
        Path(after),
        allowed=max((OPTIMIZE_STEPS[step].allowed for step in steps), key=lambda one: one.share),
        sizes=sizes,
        budget=budget,
        cases=Path(cases) if cases else None,
    )
    return asdict(measured)


def write_mobile(path: str, folder: str, target: str) -> dict[str, Any]:
    """Write a model for mobile and edge devices to `folder`; return the names of the files."""
    from cohort_prepare.optimizing.mobile import export_ort

    return {"files": export_ort(Path(path), Path(folder), target)}
