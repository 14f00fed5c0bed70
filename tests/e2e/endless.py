"""Runs without end, by which a test keeps a server busy for as long as it has to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from socket import socket

from app.session import cores
from tests import onnx_models
from tests.e2e.processes import Cohort
from tests.e2e.scrape import Scrape
from tests.rest.wire import connect, request
from tests.waiting import wait_until


def in_progress(server: Cohort, model: str) -> int:
    """How many requests for a model are in the queue or run."""
    return int(Scrape(server.url).value("model_inflight_requests", model=model))


def queued(server: Cohort, model: str) -> int:
    """How many requests for a model are in the queue."""
    return int(Scrape(server.url).value("model_queue_requests", model=model))


@contextmanager
def endless_runs(
    server: Cohort, model: str, *headers: str, count: int | None = None
) -> Iterator[list[socket]]:
    """Have `count` runs of a `loop` that end once their callers, which this gives, are closed.

    count: How many; default as many as there are cores, so that further requests wait in the queue.
    """
    wanted = cores() if count is None else count
    sent = request(f"/models/{model}/predict", {"inputs": {"n": [[onnx_models.FOREVER]]}}, *headers)
    with ExitStack() as stack:
        callers = [stack.enter_context(connect(server.url)) for _ in range(wanted)]
        for caller in callers:
            caller.sendall(sent)
        wait_until(lambda: in_progress(server, model) == wanted and not queued(server, model))
        yield callers
