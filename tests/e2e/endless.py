"""Runs without end, by which a test keeps a server busy for as long as it has to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from socket import socket

from cohort.session import cores
from tests import onnx_models
from tests.e2e.processes import Cohort
from tests.e2e.scrape import Scrape
from tests.http.wire import connect, request
from tests.waiting import wait_until


def in_progress(server: Cohort, model: str) -> int:
    """Return how many requests for a model are in the queue or run."""
    return int(Scrape(server.url).value("model_inflight_requests", model=model))


def queued(server: Cohort, model: str) -> int:
    """Return how many requests for a model are in the queue."""
    return int(Scrape(server.url).value("model_queue_requests", model=model))


@contextmanager
def endless_runs(
    server: Cohort, model: str, *headers: str, count: int | None = None
) -> Iterator[list[socket]]:
    """Start `count` runs of a `loop`; yield their callers, whose closing ends the runs.

    count: Defaults to the number of cores, so that further requests wait in the queue.
    """
    wanted = cores() if count is None else count
    sent = request(f"/models/{model}/predict", {"inputs": {"n": [[onnx_models.FOREVER]]}}, *headers)
    with ExitStack() as stack:
        callers = [stack.enter_context(connect(server.url)) for _ in range(wanted)]
        for number, caller in enumerate(callers, 1):  # one at a time: two might share a run
            caller.sendall(sent)
            wait_until(partial(_running, server, model, number))
        yield callers


def _running(server: Cohort, model: str, number: int) -> bool:
    return in_progress(server, model) == number and not queued(server, model)
