"""A server whose standard output and error accept nothing: full, closed, or without a reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.callers import callers, put
from tests.chaos.lengths import LONG
from tests.e2e.processes import cohort
from tests.pipes import fill


def never_read() -> tuple[int, ...]:
    reading, writing = os.pipe()
    fill(writing, b"\n")
    return writing, reading


def nobody_reads() -> tuple[int, ...]:
    reading, writing = os.pipe()
    os.close(reading)
    return (writing,)


def full_disk() -> tuple[int, ...]:
    return (os.open("/dev/full", os.O_WRONLY),)


def closed() -> tuple[int, ...]:
    return ()


@pytest.mark.parametrize(
    ("opened", "form"),
    [
        (never_read, "console"),
        (full_disk, "console"),
        *([(nobody_reads, "json"), (closed, "console")] if LONG else []),
    ],
)
def test_output_that_takes_nothing_stops_nothing(
    models: Path, tmp_path: Path, cache: Path, opened: Callable[[], tuple[int, ...]], form: str
) -> None:
    """It starts, serves, loads another version and stops."""
    put(models)
    stream, *others = opened() or (None,)
    under = [] if stream else ["sh", "-c", 'exec "$@" >&- 2>&-', "sh"]
    with cohort(
        models, tmp_path, stdout=stream, stderr=stream, under=under, log_format=form, cache=cache
    ) as server:
        with callers(server) as heard:
            heard.more()
            put(models, version=2)
            heard.more(of=2)
        assert set(heard.statuses) == {"200"}
        assert server.stop() == 0
    for one in filter(None, (stream, *others)):
        os.close(one)
