"""What the process does that quantizes and measures, which `process` starts.

It does one job, in JSON, and answers in JSON. What tools and models do to it ends with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from cohort.errors import CohortError
from cohort.session import Provider, open_session
from cohort.tensors import Arrays
from cohort_prepare.failures import Misused
from cohort_prepare.quantizing.building import build, needs_data_file, pre_process
from cohort_prepare.quantizing.measuring import MAX_ROWS, MeasuredPair, Opened, measure_pair
from cohort_prepare.quantizing.quality import Quality
from cohort_prepare.quantizing.ranges import find_ranges
from cohort_prepare.quantizing.recipes import GraphFacts, Method, Recipe, excluding
from cohort_prepare.quantizing.samples import read_samples
from cohort_prepare.quantizing.search import SearchResult, search_nodes
from cohort_prepare.quantizing.verdict import Limits, why_unacceptable

RANKING_ROWS = 128
"""On which the noise of a node is measured."""


@dataclass(frozen=True, slots=True)
class PreProcess:
    """Prepare `model` for all recipes; see `pre_process`."""

    model: str
    out: str
    task: Literal["pre_process"] = "pre_process"


@dataclass(frozen=True, slots=True)
class Calibrate:
    """Find ranges; see `find_ranges`."""

    prepared: str
    samples: str
    methods: tuple[Method, ...]
    folder: str
    task: Literal["calibrate"] = "calibrate"


@dataclass(frozen=True, slots=True)
class Build:
    """Apply a recipe, see `build`, and compare its outputs with the original's."""

    recipe: Recipe
    prepared: str
    original: str
    ranges: str
    out: str
    samples: str | None
    labels: str | None
    task: Literal["build"] = "build"


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure a model beside its original; see `measure_pair`."""

    original: str
    candidate: str
    samples: str | None
    labels: str | None
    task: Literal["measure"] = "measure"


@dataclass(frozen=True, slots=True)
class Search:
    """Find nodes to exclude from a recipe; see `search_nodes`."""

    building: Build
    folder: str
    nodes: tuple[str, ...]
    limits: Limits
    seconds: float
    task: Literal["search"] = "search"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job was not done.

    kind: "misused" and "rejected" as in `cohort_prepare.failures`; "system": what the system
        refused, such as space on a disk, by `number`; "failed": anything else.
    """

    error: str
    kind: Literal["misused", "rejected", "system", "failed"]
    number: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job; the field of its task, or `failure`."""

    facts: GraphFacts | None = None
    rows: int = 0
    quality: Quality | None = None
    measured: MeasuredPair | None = None
    found: SearchResult | None = None
    failure: Failure | None = None


QuantizeJob = PreProcess | Calibrate | Build | Measure | Search

JOBS: TypeAdapter[QuantizeJob] = TypeAdapter(Annotated[QuantizeJob, Field(discriminator="task")])
ANSWERS: TypeAdapter[Answer] = TypeAdapter(Answer)


def progress_file(answer: Path) -> Path:
    """Where it says how far it is, in a line."""
    return answer.with_name("progress.txt")


def do_quantize_job(job: Path, answer: Path) -> None:
    """Do the job that one file holds, and write what came of it to the other."""

    def told(text: str) -> None:
        progress_file(answer).write_text(text, encoding="utf-8")

    try:
        done = _do(JOBS.validate_json(job.read_bytes()), told)
    except Misused as error:
        done = Answer(failure=Failure(str(error), "misused"))
    except CohortError as error:
        done = Answer(failure=Failure(str(error), "rejected"))
    except OSError as error:
        text = error.strerror or str(error)
        done = Answer(failure=Failure(text, "system", error.errno or 0))
    except MemoryError:
        done = Answer(failure=Failure("there is not enough memory", "failed"))
    except Exception as error:  # noqa: BLE001 - the tools raise anything
        done = Answer(failure=Failure(f"{type(error).__name__}: {error}", "failed"))
    answer.write_bytes(ANSWERS.dump_json(done))


def _do(job: QuantizeJob, told: Callable[[str], None]) -> Answer:
    match job:
        case PreProcess():
            return Answer(facts=pre_process(Path(job.model), Path(job.out)))
        case Calibrate():
            return Answer(rows=_calibrate(job, told))
        case Build():
            _build(job, job.recipe, Path(job.out))
            original, out = Path(job.original), Path(job.out)
            opened = Opened(original, out, _path(job.samples), _path(job.labels))
            return Answer(quality=opened.compare())
        case Measure():
            pair = measure_pair(
                Path(job.original), Path(job.candidate), _path(job.samples), _path(job.labels), told
            )
            return Answer(measured=pair)
        case Search():
            return Answer(found=_search(job, told))


def _calibrate(job: Calibrate, told: Callable[[str], None]) -> int:
    prepared = Path(job.prepared)
    inputs = open_session(prepared, chain=(Provider("cpu"),)).inputs

    def batches() -> Iterator[Arrays]:
        return read_samples(Path(job.samples), inputs)

    external = needs_data_file(prepared)
    return find_ranges(
        prepared, batches, job.methods, Path(job.folder), external=external, told=told
    )


def _build(job: Build, recipe: Recipe, out: Path) -> None:
    build(recipe, Path(job.prepared), Path(job.original), Path(job.ranges), out)


def _search(job: Search, told: Callable[[str], None]) -> SearchResult:
    building = job.building
    original = Path(building.original)

    def compare(excluded: Sequence[str], labels: str | None, rows: int) -> Quality:
        with tempfile.TemporaryDirectory(dir=job.folder) as folder:
            out = Path(folder) / "model.onnx"
            _build(building, excluding(building.recipe, excluded), out)
            return Opened(original, out, _path(building.samples), _path(labels)).compare(rows)

    def noise_of(nodes: Sequence[str]) -> float:
        quality = compare(nodes, None, RANKING_ROWS)
        return float("inf") if quality.broken else quality.noise

    def acceptable(nodes: Sequence[str]) -> bool:
        return not why_unacceptable(compare(nodes, building.labels, MAX_ROWS), job.limits)

    return search_nodes(job.nodes, noise_of, acceptable, seconds=job.seconds, told=told)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
