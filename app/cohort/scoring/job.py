"""Scoring of a file: what to read, with which model, and where the results go."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from cohort.codec.tables import Place
from cohort.errors import quoted
from cohort.process.runtime import Runtime
from cohort.scoring.columns import choose_places
from cohort.scoring.parts import Parts, identity_of
from cohort.scoring.rows import Rows
from cohort.scoring.scorer import Scored, Scorer, Signature, open_scorer
from cohort.scoring.sources import (
    CsvSource,
    FileUnreadable,
    JsonSource,
    ParquetSource,
    PictureSource,
    Slice,
    Source,
    check_parquet,
)
from cohort.scoring.writers import Format, format_of

AT_ONCE = 4
"""Requests in flight, so that decoding, runs and writing overlap."""

AT_ONCE_BY_ROW = 64
"""The same for models that run one row at a time."""

KINDS = (".csv", ".parquet", ".jsonl")


@dataclass(frozen=True, slots=True)
class Task:
    """A file to score, and the model for it.

    file: The local file, or the folder of pictures.
    kind: The suffix of the result, one of KINDS.
    model: The model's name.
    version: The version's number; None: the one that answers requests.
    columns: The columns for the model, in its order; None: find them by name.
    outputs: The outputs to write; None: all.
    max_file_bytes: The largest picture that is read.
    keys: The keys of JSON lines; None: find them.
    """

    file: Path
    kind: str
    model: str
    version: str | None = None
    columns: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    max_file_bytes: int = 64 << 20
    keys: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job: `done` of `total` units, the rows scored, and those that failed."""

    done: int
    total: int
    unit: str
    rows: int
    failed: int


class Plan:
    """A task, checked against the model: the file, the columns that are read, and the format.

    task: The task, with the version that was chosen.
    source: The file.
    places: The places of the model's inputs.
    format: Writes the results.
    identity: A text that changes with all that the results depend on.

    Raises FileUnreadable, InvalidInput or OSError.
    """

    def __init__(self, task: Task, signature: Signature) -> None:
        self.rows = signature.rows
        self.task = task
        file = None if task.file.is_dir() else self._identity_of_file()
        self.source = source_of(task)  # it may read the whole file for its columns
        keys = self.source.names if isinstance(self.source, JsonSource) else None
        self.task = replace(task, version=signature.version, keys=keys)
        self.places: Sequence[Place] = (
            [0]
            if isinstance(self.source, PictureSource)
            else choose_places(
                self.source.names,
                signature.inputs,
                task.columns,
                lists=not isinstance(self.source, CsvSource),
            )
        )
        self.format: Format = format_of(task.kind, self.source, signature.outputs)
        self._file = file or self._identity_of_file()
        self.identity = identity_of(
            {
                "task": self.task,
                "file": self._file,
                "signature": replace(signature, rows=0),
            }
        )

    def _identity_of_file(self) -> object:
        if self.task.file.is_dir():
            return cast("PictureSource", self.source).identity
        found = self.task.file.stat()
        return found.st_size, found.st_mtime_ns

    def check_unchanged(self) -> None:
        """Raise FileUnreadable if the file is not the one that was opened."""
        if self._identity_of_file() != self._file:
            raise FileUnreadable(f"{self.task.file.name} changed while it was read; start again")

    async def write(
        self,
        scorer: Scorer,
        part: Slice,
        path: Path,
        wrote: Callable[[int, int], None],
    ) -> None:
        """Score a slice into a file.

        wrote: Called with further rows that were written, and those of them that failed.
        """
        rows = self.source.read(part, self.places, self.rows)
        with self.format.part(path) as write:
            async for some, scored in in_order(scorer, rows, self.rows):
                write(some, scored)
                wrote(len(some), scored.failed)


def source_of(task: Task) -> Source:
    """Open the file of a task. Raises FileUnreadable or OSError."""
    file = task.file
    if file.is_dir():
        return PictureSource(file, task.max_file_bytes)
    match file.suffix.lower():
        case ".csv":
            return CsvSource(file)
        case ".jsonl":
            return JsonSource(file, task.keys, every_key=task.kind != ".jsonl")
        case ".parquet":
            return ParquetSource(file)
    raise FileUnreadable(f"{file.name} must end in {', '.join(KINDS)}, or be a folder of pictures")


async def in_order(
    scorer: Scorer, rows: Iterator[Rows], at_once: int
) -> AsyncIterator[tuple[Rows, Scored]]:
    """Score several groups of rows at a time, and yield them in the order of the file."""
    waiting: deque[tuple[Rows, asyncio.Task[Scored]]] = deque()
    most = AT_ONCE if at_once > 1 else AT_ONCE_BY_ROW
    try:
        for some in rows:
            waiting.append((some, asyncio.ensure_future(scorer.score(some))))
            if len(waiting) < most:
                await asyncio.sleep(0)
                continue
            first, task = waiting.popleft()
            yield first, await task
        while waiting:
            first, task = waiting.popleft()
            yield first, await task
    finally:
        for _, task in waiting:
            task.cancel()


async def score_here(
    task: Task,
    settings: dict[str, Any],
    *,
    folder: Path,
    out: Path,
    report: Callable[[Progress], None],
) -> Progress:
    """Score a file in this process.

    settings: Settings of `Runtime`.
    folder: Keeps the results until all are there.
    out: The file that they become.
    report: Called often with the progress.

    Raises CohortError or OSError.
    """
    async with Runtime(**settings, on_demand=True) as runtime:
        scorer = await open_scorer(runtime, task.model, task.version, task.outputs)
        plan = Plan(task, scorer.signature)
        parts = Parts(folder, plan.identity)
        with parts.opened(), finished(parts, plan, out):
            counter = Counter(plan.source, report)
            for part in plan.source.slices():
                if part.number in parts.done:
                    counter.skip(part, *parts.done[part.number])
                    continue
                with parts.part(part.number) as (path, count):
                    await plan.write(scorer, part, path, counter.during(part, count))
                counter.end(part)
    return counter.progress


@contextmanager
def finished(parts: Parts, plan: Plan, out: Path) -> Iterator[None]:
    """Join the parts after the block, and remove them. Raises FileUnreadable."""
    yield
    plan.check_unchanged()
    parts.join(out, plan.format.join)
    parts.remove()


class Counter:
    """Counts what is done, and reports it."""

    def __init__(self, source: Source, report: Callable[[Progress], None]) -> None:
        self._report = report
        self.progress = Progress(0, source.total, source.unit, 0, 0)

    def skip(self, part: Slice, rows: int, failed: int) -> None:
        """Count a slice that was done before."""
        self._add(part.stop - part.start, rows, failed)

    def during(self, part: Slice, count: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Return a function that counts rows, and passes them on to `count`."""
        of_rows = self.progress.unit == "rows"

        def wrote(rows: int, failed: int) -> None:
            count(rows, failed)
            self._add(rows if of_rows else 0, rows, failed)

        return wrote

    def end(self, part: Slice) -> None:
        """Count the end of a slice."""
        if self.progress.unit != "rows":
            self._add(part.stop - part.start, 0, 0)

    def _add(self, done: int, rows: int, failed: int) -> None:
        was = self.progress
        self.progress = replace(
            was, done=was.done + done, rows=was.rows + rows, failed=was.failed + failed
        )
        self._report(self.progress)


def check_kind(name: str) -> str:
    """Return the kind of a result's name. Raises FileUnreadable."""
    kind = Path(name).suffix.lower()
    if kind not in KINDS:
        raise FileUnreadable(f"--out {quoted(name)} must end in {', '.join(KINDS)}")
    if kind == ".parquet":
        check_parquet(f"--out {quoted(name)}")
    return kind
