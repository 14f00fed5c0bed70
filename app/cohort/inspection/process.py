"""The process that opens unknown models: `python -m cohort.inspection.process`.

It reads jobs from its standard input, a line of JSON each, and answers each by two lines on its
standard output: which external data the model has, once its file was read, and what became of it.
Limits of the system end the process where a model takes too much; so may the model.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from cohort.batching import BatchPolicy, RunFeeds
from cohort.errors import CohortError, InferenceFailed, LoadFailed
from cohort.inspection.job import (
    EXTERNAL,
    OPENED,
    OUT_OF_MEMORY,
    OUTCOME,
    PEAK,
    REFUSED,
    ROW_VERDICT,
    Job,
    write_verdict,
)
from cohort.profiling import Trial, find_trial, sizes_up_to
from cohort.session import give_back_memory, ran_out_of_memory
from cohort.session.confinement import confine, limit_process, status_bytes
from cohort.tensors import Array, Arrays


def answer_jobs() -> None:
    """Do what the lines of standard input ask for, until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    confine()
    for line in sys.stdin:
        before = _begin_peak()
        outcome, rows = _open_and_run(Job(**json.loads(line)), answers)
        peak = _peak_above(before) if outcome == OPENED else 0
        _answer(answers, {OUTCOME: outcome, PEAK: peak, ROW_VERDICT: rows})
        signal.alarm(0)
        give_back_memory()


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


def _open_and_run(job: Job, answers: TextIO) -> tuple[str, object]:
    """Open the model and run it, and give the outcome, and what is known of its rows.

    Why a model is refused is no concern of an inspection: the server finds the same.
    """
    starved, rows = False, None
    try:
        opener = job.opener()
        limit_process(*job.limits([opener.path]))
        _answer(answers, {EXTERNAL: opener.external()})
        limit_process(*job.limits(opener.files()))
        session = opener.open()
        rows = write_verdict(session.rows)

        def run(inputs: Arrays) -> list[Array]:
            nonlocal starved
            try:
                return session.run(inputs)
            except InferenceFailed as error:
                starved |= not error.blames_input
                raise

        if job.runs:
            _run_more_rows(run, find_trial(run, session.inputs, session.rows.axes), job.seconds)
        session.close()
    except MemoryError:
        return OUT_OF_MEMORY, None
    except LoadFailed as error:
        return OUT_OF_MEMORY if ran_out_of_memory(error.__cause__) else REFUSED, rows
    except (CohortError, OSError):
        return REFUSED, rows
    return OUT_OF_MEMORY if starved else OPENED, rows


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


def _answer(answers: TextIO, answer: Mapping[str, object]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    answer_jobs()
