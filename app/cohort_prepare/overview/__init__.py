"""What is in an ONNX model, and what becomes of it here: `look_at`.

It is found in processes of their own (`process.py`), one that reads the file and one that has ONNX
Runtime open it, so that a model which is made to take any time or memory, or to crash a library,
costs no more than what would have been found.
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
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import temporary_folder
from cohort_prepare.overview.parts import Behavior, ModelStructure, Serving
from cohort_prepare.processes import preparing_environment

T = TypeVar("T", ModelStructure, Behavior)

WALL_SECONDS_PER_CPU_SECOND = 4


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """What to find, and what a model may take of the machine.

    batch: Rows of the run whose operations are counted; default 1.
    dimensions: Lengths of other open dimensions, by symbol or as `input.axis`; default none.
    page: Where to write the graph as a page; default None: nowhere.
    seconds, megabytes: CPU time and memory for each of the two processes, besides what the model's
        size adds; default 60 s and a quarter of the machine's memory; 0 s: no limits.
    max_megabytes, max_nodes: The largest model; default: as large as the memory, a million nodes.
    custom_ops: Folders of libraries of custom operators; default none.
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
    """Find what is in the model at `path`, and what becomes of it here.

    A model that cannot be opened still has a structure; one whose structure cannot be told is
    Misused where it is none, and Rejected where it takes too much. Raises OSError, too.
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
    """The provider of each node that has a name, on the first chain that takes the model."""
    for outcome in behavior.chains:
        if not outcome.problem:
            return {node.name: node.provider for node in outcome.assigned if node.name}
    return {}


def _ask(part: type[T], task: str, path: Path, request: ViewRequest, **more: object) -> T:
    """Have a job of `overview.process` done, which this call does not outlive."""
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
            f"{path}: it takes more memory than a model may (COHORT_INSPECTION_MB)"
        ) from None
    except JobFailed as error:
        if isinstance(error, JobRaised) and (error.is_a(LoadFailed) or error.is_a(OSError)):
            raise Misused(f"{path}: {error}") from error
        raise _no_view(error, request) from error
    return TypeAdapter(part).validate_python(found)


def _no_view(error: JobFailed, request: ViewRequest) -> Rejected:
    if isinstance(error, JobTimedOut):
        return Rejected(
            f"looking at it took more time than a model may: {request.seconds} s "
            "(COHORT_INSPECTION_SECONDS)"
        )
    last = error.last_line[:500]
    if error.signal:
        return Rejected(f"looking at it crashed the process ({error.signal.name}) {last}".rstrip())
    return Rejected(f"looking at it failed: {last}")
