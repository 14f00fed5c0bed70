"""The job `open_and_run` of the child process that opens unknown models.

Operating system limits end the process if a model takes too much. The model may also crash it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from cohort.batching import BatchPolicy, RunFeeds
from cohort.errors import CohortError, InferenceFailed, LoadFailed
from cohort.inspection.job import OPENED, PEAK, ROW_VERDICT, Job, write_verdict
from cohort.profiling import Trial, find_trial, sizes_up_to
from cohort.session import Session, give_back_memory, ran_out_of_memory
from cohort.system.confinement import limit_process, status_bytes
from cohort.system.job_child import report
from cohort.tensors import Array, Arrays


def open_and_run(job: Mapping[str, Any]) -> dict[str, object]:
    """Open and run the model of a `Job`; report the locations of its external data to the parent.

    Returns whether the model was opened, its peak memory in bytes, and its row verdict. The reason
    for a rejection is omitted, because the server finds the same one. Raises MemoryError if the
    model ran out of memory.
    """
    wanted, rows, before = Job(**job), None, _begin_peak()
    opened = starved = False
    try:
        opener = wanted.opener()
        limit_process(*wanted.limits([opener.path]))
        report(opener.external())
        limit_process(*wanted.limits(opener.files()))
        session = opener.open()
        rows = write_verdict(session.rows)

        def run(inputs: Arrays) -> list[Array]:
            nonlocal starved
            try:
                return session.run(inputs)
            except InferenceFailed as error:
                starved |= not error.blames_input
                raise

        if wanted.runs:
            trial = find_trial(run, session.inputs, session.rows.axes)
            _run_more_rows(run, trial, wanted.seconds)
            if opener.divisions.any and not trial.problem:
                _try_divisions(session, trial.feeds(1))
        session.close()
        opened = True
    except LoadFailed as error:
        starved |= ran_out_of_memory(error.__cause__)
    except (CohortError, OSError):
        pass
    finally:
        give_back_memory()
    if starved:
        raise MemoryError
    return {OPENED: opened, PEAK: _peak_above(before) if opened else 0, ROW_VERDICT: rows}


def _begin_peak() -> int:
    """Reset the kernel's peak memory counter, and return the current memory in bytes.

    If that fails, the return value is sys.maxsize.
    """
    with suppress(OSError, ValueError):
        Path("/proc/self/clear_refs").write_text("5")
        return status_bytes("VmRSS:")
    return sys.maxsize


def _peak_above(before: int) -> int:
    """Return the peak memory since `_begin_peak` minus `before`, in bytes; 0 if unknown."""
    with suppress(OSError, ValueError):
        return max(0, status_bytes("VmHWM:") - before)
    return 0


def _run_more_rows(run: RunFeeds, trial: Trial, seconds: int) -> None:
    """Run 1, 2, 4, … rows as the server will, to find models that only fail with several rows.

    If run time is proportional to rows, all runs together take at most half of the CPU `seconds`.
    As in the server, more than 8 rows are run only while runs are short.
    """
    if trial.problem:
        return
    policy = BatchPolicy()
    with suppress(CohortError):
        for rows in sizes_up_to(policy.max_batch_size):
            started = time.process_time()
            run(trial.feeds(rows))
            most = seconds / 8 if rows < 8 else policy.latency_budget_ms / 1000
            if time.process_time() - started > most:
                break


TRIED_DIVISORS = 8
"""Maximum number of inputs that are tried as the divisor."""

DIVISION_SECONDS = 1.0
"""Time limit of a run with extreme values, because an extreme value may be a length."""


def _try_divisions(session: Session, feeds: Arrays) -> None:
    """Run the model with values that crash an integer division: each input as the divisor -1.

    The other integers are the minimum of their type. Floats are NaN, which a Cast turns into the
    minimum integer. A model with such a division crashes here, not in the server. All other
    results of these runs are ignored.
    """
    whole = [name for name, array in feeds.items() if array.dtype.kind == "i"]
    for divisor in (*whole[:TRIED_DIVISORS], None):
        control = session.control()
        timer = threading.Timer(DIVISION_SECONDS, control.stop)
        timer.start()
        try:
            session.run(
                {name: _extreme(one, name == divisor) for name, one in feeds.items()}, control
            )
        except CohortError:
            pass
        finally:
            timer.cancel()


def _extreme(array: Array, divides: bool) -> Array:
    if array.dtype.kind == "i":
        return np.full_like(array, -1 if divides else -(1 << 8 * array.itemsize - 1))
    return np.full_like(array, np.nan) if array.dtype.kind == "f" else array
