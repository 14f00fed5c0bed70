"""The same on Ray Data: every slice is a task for an actor that holds a `Runtime`.

Every node needs this package, the file and the models at the same paths.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from cohort.errors import CohortError
from cohort.extras import how_to_install
from cohort.process.runtime import Runtime
from cohort.scoring.job import Counter, Plan, Progress, Task, finished
from cohort.scoring.parts import Parts
from cohort.scoring.scorer import open_scorer
from cohort.scoring.sources import FileUnreadable, Slice
from cohort.system.remote_address import anywhere

A = TypeVar("A")

SLICES_PER_ACTOR = 2
"""Slices that wait at an actor, whose results are in Ray's object store until they are written."""


class RayFailed(CohortError):
    """A task on the cluster failed."""


def score_on_ray(
    task: Task,
    settings: dict[str, Any],
    *,
    folder: Path,
    out: Path,
    report: Callable[[Progress], None],
) -> Progress:
    """Score a file on the cluster that RAY_ADDRESS names, or else on one of this machine.

    The arguments are those of `score_here`. Raises CohortError or OSError.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError:
        raise FileUnreadable(f"--ray needs Ray: {how_to_install('ray')}") from None
    models = str(settings.get("models") or os.environ.get("COHORT_MODELS", "models"))
    settings = {**settings, "models": anywhere(models)}
    with Opened(task, settings) as opened:
        plan = opened.plan
    parts = Parts(folder, plan.identity)
    with parts.opened(), finished(parts, plan, out):
        counter, waiting = Counter(plan.source, report), {}
        for part in plan.source.slices():
            if part.number in parts.done:
                counter.skip(part, *parts.done[part.number])
            else:
                waiting[part.number] = part
        if waiting:
            ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
            for number, rows, failed, content in _results(plan.task, settings, waiting):
                with parts.part(number) as (path, count):
                    path.write_bytes(content)
                    counter.during(waiting[number], count)(rows, failed)
                counter.end(waiting[number])
    return counter.progress


def _results(
    task: Task, settings: Mapping[str, Any], waiting: Mapping[int, Slice]
) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield the number, the rows, the failed rows and the content of each slice, in any order."""
    import ray  # noqa: PLC0415 - an extra
    from ray import data  # noqa: PLC0415
    from ray.exceptions import RayError  # noqa: PLC0415

    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    items = [
        {"number": one.number, "start": one.start, "stop": one.stop} for one in waiting.values()
    ]
    nodes = max(int(ray.cluster_resources().get("CPU", 1)), 1)
    scored = data.from_items(items, override_num_blocks=len(items)).map_batches(
        SliceScorer,
        batch_size=1,
        compute=data.ActorPoolStrategy(
            min_size=1,
            max_size=min(nodes, len(items)),
            max_tasks_in_flight_per_actor=SLICES_PER_ACTOR,
        ),
        fn_constructor_args=(task, dict(settings)),
        num_cpus=1,
    )
    try:
        for row in scored.iter_rows():
            yield int(row["number"]), int(row["rows"]), int(row["failed"]), row["content"]
    except RayError as error:
        raise RayFailed(f"a task on Ray failed: {str(error).strip().splitlines()[-1]}") from error


class Opened:
    """A task's model in a `Runtime`, on its own event loop. A context manager."""

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="scoring", daemon=True).start()
        try:
            self._wait(self._open(task, settings))
        except BaseException:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    async def _open(self, task: Task, settings: Mapping[str, Any]) -> None:
        self._runtime = await Runtime(**settings, on_demand=True).__aenter__()
        try:
            self._scorer = await open_scorer(self._runtime, task.model, task.version, task.outputs)
            self.plan = Plan(task, self._scorer.signature)
        except BaseException:
            await self._runtime.__aexit__(None, None, None)
            raise

    def _wait(self, doing: Coroutine[Any, Any, A]) -> A:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    def write(self, part: Slice, path: Path, wrote: Callable[[int, int], None]) -> None:
        """Score a slice into a file, as `Plan.write`."""
        self._wait(self.plan.write(self._scorer, part, path, wrote))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._runtime.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)


class SliceScorer:
    """An actor that scores slices. It opens the model once.

    task: The task, with its version.
    settings: Settings of `Runtime`.
    """

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        self._opened = Opened(task, settings)

    def __call__(self, batch: Mapping[str, Any]) -> Mapping[str, list[Any]]:
        """Score the only slice of a batch; return its rows, failed rows and content."""
        part = Slice(*(int(batch[name][0]) for name in ("number", "start", "stop")))
        counts = [0, 0]

        def count(rows: int, failed: int) -> None:
            counts[0] += rows
            counts[1] += failed

        with TemporaryDirectory() as folder:
            path = Path(folder) / "part"
            self._opened.write(part, path, count)
            content = path.read_bytes() if path.exists() else b""
        rows, failed = counts
        return {"number": [part.number], "rows": [rows], "failed": [failed], "content": [content]}
