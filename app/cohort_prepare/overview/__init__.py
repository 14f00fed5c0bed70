"""Inspect an ONNX model's structure and its behavior on this machine: `look_at`.

Separate processes (`process.py`) read the file and open it with ONNX Runtime. A model that uses too
much time or memory, or crashes a library, only loses the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from cohort.errors import LoadFailed
from cohort.session import MAX_NODES
from cohort.system.jobs import (
    JobFailed,
    JobLimits,
    JobOutOfMemory,
    JobRaised,
    JobTimedOut,
    run_job,
)
from cohort_prepare.failures import Misused, Rejected, name_path
from cohort_prepare.onnx_files import temporary_folder
from cohort_prepare.overview.parts import Behavior, ModelStructure, Serving
from cohort_prepare.processes import preparing_environment

T = TypeVar("T", ModelStructure, Behavior)

WALL_SECONDS_PER_CPU_SECOND = 4


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """Options and limits of an inspection.

    batch: Rows of the run for which operations are counted; default 1.
    dimensions: Lengths of other variable dimensions, by symbol or as `input.axis`; default none.
    page: File for the graph as a page; default None: none.
    seconds, megabytes: CPU time and memory for each of the two processes; a model's size adds to
        both. Default 60 s and a quarter of the machine's memory; 0 s: no limits.
    max_megabytes, max_nodes: Maximum size of a model; default: the memory, and a million nodes.
    custom_ops: Folders of custom operator libraries; default none.
    """

    batch: int = 1
    dimensions: Mapping[str, int] = field(default_factory=dict)
    page: Path | None = None
    seconds: int = 60
    megabytes: int | None = None
    max_megabytes: int | None = None
    max_nodes: int = MAX_NODES
    custom_ops: tuple[Path, ...] = ()


def look_at(path: Path, request: ViewRequest = ViewRequest()) -> tuple[ModelStructure, Behavior]:
    """Return the structure of the model at `path`, and its behavior here.

    A model that cannot be opened still has a structure. Raises Misused if the file is not a model,
    Rejected if it exceeds the limits, and OSError.
    """
    if request.page is None:
        behavior = _behavior(path, request)
        return _ask(ModelStructure, "describe", path, request), behavior
    with temporary_folder(request.page.absolute().parent) as folder:
        behavior = _behavior(path, request)
        made = folder / "page.html"
        providers = _by_name(behavior)
        structure = _ask(
            ModelStructure,
            "describe",
            path,
            replace(request, page=made),
            providers=providers,
            rows=behavior.serving.rows,
        )
        made.replace(request.page)
    return structure, behavior


def _behavior(path: Path, request: ViewRequest) -> Behavior:
    try:
        return _ask(Behavior, "observe_opening", path, request)
    except Rejected as error:
        return Behavior(serving=Serving(problem=str(error)))


def _by_name(behavior: Behavior) -> dict[str, str]:
    """Return the provider of each named node, on the first chain that accepts the model."""
    for outcome in behavior.chains:
        if not outcome.problem:
            return {node.name: node.provider for node in outcome.assigned if node.name}
    return {}


def _ask(part: type[T], task: str, path: Path, request: ViewRequest, **more: object) -> T:
    """Run a job of `overview.process`; end it with this call."""
    job = to_jsonable_python({**asdict(request), **more, "path": path.absolute()})
    patience = request.seconds * WALL_SECONDS_PER_CPU_SECOND + 60
    try:
        found = run_job(
            f"cohort_prepare.overview.process:{task}",
            {"job": job},
            environment=preparing_environment(),
            limits=JobLimits(patience if request.seconds else None),
        )
    except JobOutOfMemory:
        raise Misused(
            f"{path}: the model exceeds the memory limit (COHORT_INSPECTION_MB)"
        ) from None
    except JobFailed as error:
        if isinstance(error, JobRaised) and (error.is_a(LoadFailed) or error.is_a(OSError)):
            raise Misused(name_path(path, error)) from error
        raise _no_view(error, request) from error
    return TypeAdapter(part).validate_python(found)


def _no_view(error: JobFailed, request: ViewRequest) -> Rejected:
    if isinstance(error, JobTimedOut):
        return Rejected(
            f"reading the model exceeded the time limit of {request.seconds} s "
            "(COHORT_INSPECTION_SECONDS)"
        )
    last = error.last_line[:500]
    if error.signal:
        return Rejected(
            f"reading the model crashed the process ({error.signal.name}) {last}".rstrip()
        )
    return Rejected(f"reading the model failed: {last}")
