"""Requests of one turn of the loop that ask alike: read, run and answered together.

What a request takes of processor time is mostly not its own: an object here, a call there, again
for the next one. Where a model runs in less time than that, it is what limits how many it answers.
So requests whose heads are known wait for the end of the turn, as they would for their run, and
those of one row for one such model go as one: one array, one lease, one ticket, one text to cut
the answers from. Whoever is not of that kind, or whose company fails, goes alone, the way of every
call; nobody can tell by the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from app.codec import pack_rows, read_row, write_rows
from app.data_plane import DataPlane, Outputs, Served, SharedLease
from app.errors import Cancelled, CohortError, DeadlineExceeded, InferenceFailed
from app.rest.calls import JSON, Encoded, are_large

if TYPE_CHECKING:
    from app.rest.hot.cycle import HotCycle

Waiting = tuple["HotCycle", bytes, float]
"""A request, its body, and when it came."""

Group = tuple[list[Waiting], list[list[float]]]
"""Requests that ask alike, and the row of each."""


class Together:
    """Gathers the requests of a turn, and parts them by what they ask."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._waiting: list[Waiting] = []

    def add(self, cycle: HotCycle, body: bytes) -> None:
        """Keep a request, whose headers are known to be fine, until the end of the turn."""
        if not self._waiting:
            self._plane.gather(self._part)
        self._waiting.append((cycle, body, monotonic()))

    def _part(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            self._part_or_raise(waiting)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the callers get an answer
            _fail(waiting, bug)

    def _part_or_raise(self, waiting: Sequence[Waiting]) -> None:
        if len(waiting) == 1:
            _alone(waiting)
            return
        groups: dict[tuple[str | None, str | None, int], Group] = {}
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
            group = groups.get(key)
            if group is None:
                group = groups[key] = ([], [])
            group[0].append(one)
            group[1].append(row)
        for (model, name, _), (requests, rows) in groups.items():
            served = self._plane.served_together(model)
            most = 1 if served is None else served.most_together
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
        array = pack_rows([body for _, body, _ in requests], rows, served.inputs[0].datatype)
        if array is None or len(requests) == 1:
            _alone(requests)
            return

        def reply(outputs: Outputs | None, error: CohortError | None) -> None:
            try:
                _answer(lease, requests, outputs, error, single=single)
            except Exception as bug:  # noqa: BLE001
                lease.close([bug] * len(requests))
                _fail(requests, bug)

        try:
            lease = self._plane.share(served, [since for _, _, since in requests])
        except CohortError:  # some may still get in
            _alone(requests)
            return
        try:
            lease.submit({served.inputs[0].name: array}, reply)
        except Exception as error:
            lease.close()
            if not isinstance(error, CohortError):
                raise
            _alone(requests)


def _answer(
    lease: SharedLease,
    requests: Sequence[Waiting],
    outputs: Outputs | None,
    error: CohortError | None,
    *,
    single: bool,
) -> None:
    """Answer them all, or send each alone where one of them may have spoilt it for the others."""
    if error is not None and not _is_ones_doing(error):
        lease.close([error] * len(requests))
        _fail(requests, error)
        return
    bodies = None
    served = lease.served
    if outputs is not None:
        if are_large(outputs):
            served.rows_together = False  # they are written on a thread, each for itself
        else:
            named = [(served.outputs[place].name, outputs[place]) for place in served.sent]
            bodies = write_rows(
                named,
                model=served.model,
                version=served.version,
                single=single,
                seconds=lease.seconds,
            )
    if bodies is None or len(bodies) != len(requests):
        lease.close()
        _alone(requests)
        return
    lease.close([LEFT if cycle.response_complete else None for cycle, _, _ in requests])
    for (cycle, _, _), body in zip(requests, bodies, strict=True):
        if not cycle.response_complete:
            cycle.end(200, Encoded(body, JSON))


LEFT = Cancelled("the caller left")


def _is_ones_doing(error: CohortError) -> bool:
    """Whether others may still be answered; after a timeout or the device's failure, none are."""
    if isinstance(error, InferenceFailed):
        return error.blames_input
    return not isinstance(error, DeadlineExceeded)


def _fail(requests: Sequence[Waiting], error: Exception) -> None:
    for cycle, _, _ in requests:
        if not cycle.response_complete:
            cycle.fail(error)


def _alone(requests: Sequence[Waiting]) -> None:
    for cycle, body, _ in requests:
        cycle.arrive(body)
