"""Requests of one turn of the loop that ask alike: read, run and answered together.

What a request takes of processor time is mostly not its own: an object here, a call there, again
for the next one. Where a model runs in less time than that, it is what limits how many it answers.
So requests whose heads are known wait for the end of the turn, as they would for their run, and
those of one row for one such model go as one: one array, one lease, one ticket, one text to cut
the answers from. Whoever is not of that kind, or whose company fails, goes alone, the way of every
call; nobody can tell by the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from app.codec import pack_rows, read_row, write_rows
from app.data_plane import COALESCED_RUN_SECONDS, DataPlane, Outputs, Served, SharedLease
from app.errors import CohortError, DeadlineExceeded, InferenceFailed
from app.rest.calls import JSON, Encoded, are_large

if TYPE_CHECKING:
    from app.rest.hot.cycle import HotCycle

Waiting = tuple["HotCycle", bytes]
"""A request and its body."""

Group = tuple[list[Waiting], list[list[float]]]
"""Requests that ask alike, and the row of each."""

Key = tuple[str | None, str | None, int]
"""What they ask alike: the model, the input's name and how many numbers are in a row."""


class Together:
    """Gathers the requests of a turn, and parts them by what they ask."""

    def __init__(self, plane: DataPlane, draining: Callable[[], bool]) -> None:
        self._plane, self._draining = plane, draining
        self._waiting: list[Waiting] = []
        self._since = 0.0  # when the first of them was read
        self._until = 0.0  # until when they may run at once; the loop has sockets to read

    def add(self, cycle: HotCycle, body: bytes) -> None:
        """Keep a request, whose headers are known to be fine, until the end of the turn."""
        if not self._waiting:
            self._since = monotonic()
            self._plane.gather(self._part)
        self._waiting.append((cycle, body))

    def _part(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._until = monotonic() + COALESCED_RUN_SECONDS
        try:
            self._part_or_raise(waiting)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the callers get an answer
            _fail(waiting, bug)

    def _part_or_raise(self, waiting: Sequence[Waiting]) -> None:
        groups: dict[Key, Group] = {}
        last: Key | None = None
        requests: list[Waiting] = []
        rows: list[list[float]] = []
        for one in waiting:
            read = read_row(one[1])
            if read is None:
                _alone([one])
                continue
            model, name, row = read
            asked = one[0].head.route.model
            if asked is not None:
                if model is not None and model != asked:
                    _alone([one])
                    continue
                model = asked
            key = (model, name, len(row))
            if key != last:
                last = key
                requests, rows = groups.setdefault(key, ([], []))
            requests.append(one)
            rows.append(row)
        for (model, name, _), (requests, rows) in groups.items():
            served = self._plane.coalescing_target(model)
            most = 1 if served is None else served.coalesce_limit
            if (
                served is None
                or most == 1
                or (name or served.inputs[0].name) != served.inputs[0].name
            ):
                _alone(requests)
                continue
            for first in range(0, len(requests), most):
                some = slice(first, first + most)
                self._send(served, requests[some], rows[some], single=name is None)

    def _send(
        self,
        served: Served,
        requests: Sequence[Waiting],
        rows: Sequence[list[float]],
        *,
        single: bool,
    ) -> None:
        array = pack_rows([body for _, body in requests], rows, served.inputs[0].datatype)
        if array is None:
            _alone(requests)
            return

        def reply(outputs: Outputs | None, error: CohortError | None) -> None:
            try:
                bodies = _write(lease, requests, outputs, error, single=single)
                if bodies is not None:
                    lease.close(left=sum([cycle.response_complete for cycle, _ in requests]))
                    _answer(requests, bodies, last=self._draining())
            except Exception as bug:  # noqa: BLE001
                lease.close(bug)
                _fail(requests, bug)

        try:
            lease = self._plane.share(served, self._since, len(requests))
        except CohortError:  # some may still get in
            _alone(requests)
            return
        try:
            in_time = monotonic() < self._until
            lease.submit({served.inputs[0].name: array}, reply, at_once=in_time)
        except Exception as error:
            lease.give_up()
            if not isinstance(error, CohortError):
                raise
            _alone(requests)


def _write(
    lease: SharedLease,
    requests: Sequence[Waiting],
    outputs: Outputs | None,
    error: CohortError | None,
    *,
    single: bool,
) -> list[bytes] | None:
    """Write a body for each; None where they failed, or go alone as one may have spoilt it."""
    if error is not None and not _is_ones_doing(error):
        lease.close(error)
        _fail(requests, error)
        return None
    served, bodies = lease.served, None
    if outputs is not None:
        if are_large(outputs):
            served.coalescible = False  # they are written on a thread, each for itself
        else:
            bodies = write_rows(
                [(served.outputs[place].name, outputs[place]) for place in served.sent],
                model=served.model,
                version=served.version,
                single=single,
                seconds=lease.seconds,
            )
    if bodies is None or len(bodies) != len(requests):
        lease.give_up()
        _alone(requests)
        return None
    return bodies


def _answer(requests: Sequence[Waiting], bodies: Sequence[bytes], *, last: bool) -> None:
    for (cycle, _), body in zip(requests, bodies, strict=True):
        if cycle.response_complete:
            continue
        if last or not cycle.protocol.send_usual(cycle, body):
            cycle.end(200, Encoded(body, JSON))


def _is_ones_doing(error: CohortError) -> bool:
    """Whether others may still be answered; after a timeout or the device's failure, none are."""
    if isinstance(error, InferenceFailed):
        return error.blames_input
    return not isinstance(error, DeadlineExceeded)


def _fail(requests: Sequence[Waiting], error: Exception) -> None:
    for cycle, _ in requests:
        if not cycle.response_complete:
            cycle.fail(error)


def _alone(requests: Sequence[Waiting]) -> None:
    for cycle, body in requests:
        cycle.arrive(body)
