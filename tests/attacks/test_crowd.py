"""Many callers at once, each with few requests: a crowd is served, not treated as an attack.

No times are compared, since they would depend mostly on the machine. The tests compare which
callers were answered, and the server's processor time for each answer.
"""

from __future__ import annotations

import resource
import select
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests import onnx_models
from tests.attacks.asker import processor_time
from tests.e2e.processes import Cohort, cohort
from tests.http.wire import connect, request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell the time of a process so exactly"
)

FEW, MANY, MOST = 64, 1000, 4000
"""Connections."""

REQUESTS = 4000
"""Requests of all connections together, in turns of one each."""

DEARER = 5.0
"""Factor by which an answer's processor time may grow from a few connections to many.

It grew by 1.2 at most. A cost for each connection would make it grow by 15 and by 60.
"""

ROUNDS = 5
"""Maximum measurements of an answer's cost; the lowest counts."""

MAX_WAIT = 10.0
"""Seconds: a caller in a crowd waits for those before it."""

X = [[0.1, 0.2, 0.3, 0.4]]
APIS = {
    "hot": request("/predict", {"input": X}),
    "ordinary": request("/predict?by=asgi", {"input": X}),
    "V2": request(
        "/v2/models/mlp/infer",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X}]},
    ),
    "V1": request("/v1/models/mlp:predict", {"instances": X}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A small model, served with the limits that there are by default."""
    folder = tmp_path_factory.mktemp("crowd")
    onnx_models.save(onnx_models.mlp(), folder / "models/mlp/1/model.onnx")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + 1000
    if soft < wanted:  # raised for this process, whose connections they are, and the server's
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    with cohort(folder / "models", folder) as started:
        yield started
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class Caller:
    """A connection with one request on its way."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    def answered(self) -> int:
        """The status of the answer, once it is whole; 0 before."""
        part = self.connection.recv(65536)
        assert part, "the server has closed the connection"
        self.received += part
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return 0
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
        if len(body) < length:
            return 0
        status = int(head[9:12])
        assert status != 429 or b"retry-after" in head
        self.received.clear()
        return status


def ask(callers: list[Caller], sent: bytes) -> Counter[int]:
    """Have all callers ask once, at the same time, and count how they were answered."""
    waiting = {caller.connection.fileno(): caller for caller in callers}
    poll = select.epoll()
    for number in waiting:
        poll.register(number, select.EPOLLIN)
    for caller in callers:
        caller.connection.sendall(sent)
    statuses: Counter[int] = Counter()
    while waiting:
        ready = poll.poll(PATIENCE)
        assert ready, f"{len(waiting)} callers wait in vain"
        for number, _ in ready:
            if status := waiting[number].answered():
                statuses[status] += 1
                del waiting[number]
    poll.close()
    return statuses


@dataclass(frozen=True)
class Told:
    """Statuses of a crowd's answers, and the server's processor time in seconds for each."""

    statuses: Counter[int]
    cost: float


def crowd(server: Cohort, sent: bytes, count: int) -> Told:
    """Connect `count` callers, who ask once before it counts, and then in turns."""
    with ExitStack() as stack:
        callers = [Caller(stack.enter_context(connect(server.url))) for _ in range(count)]
        statuses = ask(callers, sent)
        before = processor_time(server.process.pid)
        turns = max(REQUESTS // count, 1)
        for _ in range(turns):
            statuses += ask(callers, sent)
        return Told(statuses, (processor_time(server.process.pid) - before) / (turns * count))


@pytest.mark.parametrize("api", APIS)
def test_a_crowd_is_answered_and_an_answer_costs_what_it_did(server: Cohort, api: str) -> None:
    """A thousand are all answered with 200; thousands get 200, or 429.

    An answer takes at most five times the processor time that it takes with few connections, and
    the log does not grow with the answers.
    """
    lines = server.logged.count("\n")
    few = crowd(server, APIS[api], FEW)
    assert set(few.statuses) == {200}
    for count in (MANY, MOST) if api != "ordinary" else (MANY,):  # those cost ten times as much
        for _ in range(ROUNDS):
            told = crowd(server, APIS[api], count)
            assert set(told.statuses) <= ({200} if count == MANY else {200, 429})
            assert told.statuses[200] >= told.statuses.total() / 2
            if told.cost <= DEARER * few.cost:
                break
        else:
            pytest.fail(f"{count}: {told.cost:.6f} s, not {few.cost:.6f} s")
    assert server.logged.count("\n") - lines < 200
