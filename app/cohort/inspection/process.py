"""What the process does that opens unknown models: the job `open_and_run`.

Limits of the system end the process where a model takes too much; so may the model.
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
from cohort.system.job_child import tell
from cohort.tensors import Array, Arrays


def open_and_run(job: Mapping[str, Any]) -> dict[str, object]:
    """Open the model of a `Job` and run it; tell where its external data is once it was read.

    Returns whether it was opened, how many bytes of memory that took, and what is known of its
    rows. Why a model is refused is no concern of an inspection: the server finds the same. Raises
    MemoryError.
    """
    wanted, rows, before = Job(**job), None, _begin_peak()
    opened = starved = False
    try:
        opener = wanted.opener()
        limit_process(*wanted.limits([opener.path]))
        tell(opener.external())
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
    """Have the system forget the most memory so far, and give what this process has now."""
    with suppress(OSError, ValueError):
        Path("/proc/self/clear_refs").write_text("5")
        return status_bytes("VmRSS:")
    return sys.maxsize


def _peak_above(before: int) -> int:
    """How many bytes more than `before` there were since `_begin_peak`; 0 where nobody tells."""
    with suppress(OSError, ValueError):
        return max(0, status_bytes("VmHWM:") - before)
    return 0


def _run_more_rows(run: RunFeeds, trial: Trial, seconds: int) -> None:
    """Run 1, 2, 4, … rows as the server will, for a model that does harm with several only.

    All together take half the CPU `seconds` at most where the work of a run follows its rows; as in
    the server, there are more than 8 only while runs are short.
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
"""Inputs that are tried as the divisor."""

DIVISION_SECONDS = 1.0
"""How long a run with such values may take: they may be lengths, too."""


def _try_divisions(session: Session, feeds: Arrays) -> None:
    """Run with values that are fatal in a division of whole numbers: each input as a divisor of -1.

    The others have the least number of their type; floats are NaN, of which a Cast makes the least
    whole number. A model that divides so crashes here, and not where it serves. Whatever else
    comes of such values says nothing.
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
