"""The process that rewrites and times models: `python -m cohort_prepare.optimizing.child JOB`.

JOB is a JSON file; the answer goes into `answer.json` beside it. Whatever a library or a model
does to the process, the parent lives on (`optimizer`).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cohort.errors import CohortError
from cohort_prepare.failures import Misused
from cohort_prepare.optimizing.worker import DISK_FULL


def do_task(job_path: Path) -> None:
    """Do the job in the file and write the answer."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # the first to go for want of memory
        Path("/proc/self/oom_score_adj").write_text("1000")
    logging.disable(logging.WARNING)  # libraries talk
    tempfile.tempdir = str(job_path.parent)  # which is removed, whatever becomes of this process
    job = json.loads(job_path.read_text(encoding="utf-8"))
    try:
        answer = _TASKS[job.pop("task")](**job)
    except Misused as error:
        answer = {"misused": str(error)}
    except CohortError as error:
        answer = {"rejected": str(error)}
    except OSError as error:
        answer = {"errno": error.errno or 0, "reason": error.strerror or str(error)}
    except Exception as error:  # noqa: BLE001 - a library's own
        answer = {"rejected": _said(error)}
    try:
        job_path.with_name("answer.json").write_text(json.dumps(answer), encoding="utf-8")
    except OSError as error:  # nor is there room for that, then
        os._exit(DISK_FULL if error.errno == errno.ENOSPC else 1)


def _said(error: Exception) -> str:
    """What a library's exception says, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:MAX_SAID]}" if text else type(error).__name__


MAX_SAID = 400


def _look(path: str, cases: str) -> dict[str, Any]:
    from cohort_prepare.onnx_files import read_onnx
    from cohort_prepare.optimizing.weighing import check_runs

    nodes = len(read_onnx(Path(path)).graph.node)
    check_runs(Path(path), Path(cases) if cases else None)
    return {"nodes": nodes}


def _rewrite(step: str, path: str, out: str, opset: int, model_type: str) -> dict[str, Any]:
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


def _weigh(
    before: str, after: str, steps: list[str], sizes: list[int], budget: float, cases: str
) -> dict[str, Any]:
    from cohort_prepare.optimizing.choices import OPTIMIZE_STEPS
    from cohort_prepare.optimizing.weighing import weigh

    weighed = weigh(
        Path(before),
        Path(after),
        allowed=max((OPTIMIZE_STEPS[step].allowed for step in steps), key=lambda one: one.share),
        sizes=sizes,
        budget=budget,
        cases=Path(cases) if cases else None,
    )
    return asdict(weighed)


def _export(path: str, folder: str, target: str) -> dict[str, Any]:
    from cohort_prepare.optimizing.mobile import export_ort

    return {"files": export_ort(Path(path), Path(folder), target)}


_TASKS: Mapping[str, Any] = {
    "look": _look,
    "rewrite": _rewrite,
    "weigh": _weigh,
    "export": _export,
}

if __name__ == "__main__":
    do_task(Path(sys.argv[1]))
