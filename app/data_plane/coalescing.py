"""Small requests read in one event-loop iteration, run and answered as one.

Most of the cost of a small request is not its model but the objects and calls made for each
request. Where a model runs a row in less time than that, this cost limits requests per second. So
requests of one row for the same model, read in one iteration, share one array, one lease, one run
and one text that their responses are cut from (docs/decisions/0008).

Requests that cannot be coalesced are answered one by one, as all other requests, with the same
response. What is known before a body is parsed decides first: a model that has a rollout, or whose
runs are too long, coalesces nothing. No body is parsed twice: a single request continues with the
document that was parsed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from app.batching import Outputs
from app.codec import are_large, pack_rows, read_row, write_rows
from app.data_plane.lease import GroupLease, ServedVersion
from app.errors import CohortError, DeadlineExceeded, InferenceFailed, InvalidInput, Overloaded
from app.scheduling import INLINE_SECONDS, MAX_READING_SECONDS

COALESCED_RUN_SECONDS = INLINE_SECONDS
"""How long coalesced runs may occupy the event loop in one iteration: sockets wait meanwhile.

Longer where reading the requests took longer, as `app.scheduling` says.
"""


class SmallRequest(Protocol):
    """A request that may be coalesced."""

    @property
    def response_complete(self) -> bool:
        """Whether it needs no response any more: its caller left."""

    def proceed(self, body: bytes) -> None:
        """Continue as a single request, with a body that is not parsed yet."""

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Continue as a single request, with the document that the body was parsed to."""

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that was found before a version was chosen."""

    def succeed(self, body: bytes, served: ServedVersion) -> None:
        """Answer with the body of a successful response, which this version gave."""

    def fail(self, error: Exception) -> None:
        """Answer with an error."""


Waiting = tuple[SmallRequest, str | None, bytes]
"""A request, the model that its path names (None where the body may), and its body."""

Member = tuple[SmallRequest, bytes, object, list[float]]
"""A request that may be coalesced, its body, the parsed document, and the row in it."""

Form = tuple[str | None, str | None, int]
"""What requests must have in common to be coalesced.

The model, the input's name (None in the `{"input": ...}` form) and the width of the row. These
three types are plain tuples because one of each is made per request.
"""


class Coalescer:
    """Gathers the requests of an event-loop iteration and runs those that fit as groups.

    target: Returns the version that answers a model's coalesced requests; None where they are not
        coalesced.
    lease: Takes a GroupLease, from the version, the arrival of the first request in seconds on the
        monotonic clock, and the number of requests. Raises NotReady or Overloaded.
    room: Gives how many more requests may be in progress.
    refused: Counts refused requests, from the model, the error, and the number of requests.
    gather: Calls a function once all sockets of this event-loop iteration have been read, before
        the scheduler looks for the next batch.
    """

    def __init__(
        self,
        *,
        target: Callable[[str | None], ServedVersion | None],
        lease: Callable[[ServedVersion, float, int], GroupLease],
        room: Callable[[], int],
        refused: Callable[[str, CohortError, int], None],
        gather: Callable[[Callable[[], None]], None],
    ) -> None:
        self._target = target
        self._lease = lease
        self._room = room
        self._refused = refused
        self._gather = gather
        self._waiting: list[Waiting] = []
        self._since = 0.0  # when the first of them was read
        self._until = 0.0  # until when groups may run in this iteration

    def add(self, request: SmallRequest, model: str | None, body: bytes) -> None:
        """Keep a request until the end of the iteration. Its headers have been checked.

        request: The request.
        model: The model that its path names; None where the body may name one.
        body: The whole body, not parsed yet.
        """
        if not self._waiting:
            self._since = monotonic()
            self._gather(self._answer_all)
        self._waiting.append((request, model, body))

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        now = monotonic()
        reading = min(now - self._since, MAX_READING_SECONDS)
        self._until = now + max(COALESCED_RUN_SECONDS, reading)
        try:
            for (model, name, _), members in self._group(waiting).items():
                self._run(model, name, members)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the callers get a response
            _fail([request for request, _, _ in waiting], bug)

    def _group(self, waiting: Sequence[Waiting]) -> dict[Form, list[Member]]:
        """Parse each body once; requests that cannot be coalesced continue as single ones."""
        groups: dict[Form, list[Member]] = {}
        last: Form | None = None
        members: list[Member] = []
        checked: str | None = None  # the path's model that was looked up last
        single = False
        for request, path_model, body in waiting:
            if path_model is not None:
                if path_model != checked:
                    checked, single = path_model, self._limit_of(path_model)[0] is None
                if single:
                    request.proceed(body)
                    continue
            try:
                document, asked = read_row(body)
            except InvalidInput as error:
                request.refuse(error)
                continue
            if asked is None:
                request.proceed_parsed(document, body)
                continue
            model, name, row = asked
            if path_model is not None:
                if model is not None and model != path_model:
                    request.proceed_parsed(document, body)
                    continue
                model = path_model
            form = (model, name, len(row))
            if form != last:
                last = form
                members = groups.setdefault(form, [])
            members.append((request, body, document, row))
        return groups

    def _run(self, model: str | None, name: str | None, members: list[Member]) -> None:
        served, limit = self._limit_of(model)
        if served is None or (name is not None and name != served.inputs[0].name):
            _proceed(members)
            return
        for first in range(0, len(members), limit):
            self._run_group(served, members[first : first + limit], single=name is None)

    def _limit_of(self, model: str | None) -> tuple[ServedVersion | None, int]:
        """The version that answers coalesced requests, None if none, and the rows of one run."""
        served = self._target(model)
        if served is None or not served.coalescible:
            return None, 1
        limit = served.engine.inline_rows
        return (served, limit) if limit > 1 else (None, 1)

    def _run_group(self, served: ServedVersion, members: Sequence[Member], *, single: bool) -> None:
        spec = served.inputs[0]
        bodies, rows = [body for _, body, _, _ in members], [row for _, _, _, row in members]
        array = pack_rows(bodies, rows, spec.datatype)
        if array is None:
            _proceed(members)
            return

        def reply(outputs: Outputs | None, error: CohortError | None) -> None:
            try:
                _reply(lease, members, outputs, error, single=single)
            except Exception as bug:  # noqa: BLE001 - whatever it is, the callers get a response
                lease.close(bug)
                _fail([request for request, *_ in members], bug)

        try:
            lease = self._lease(served, self._since, len(members))
        except Overloaded as error:
            self._run_some(served, members, error, room=self._room(), single=single)
            return
        except CohortError:
            _proceed(members)
            return
        try:
            lease.submit({spec.name: array}, reply, now=monotonic() < self._until)
        except Overloaded as error:
            lease.release()
            self._run_some(served, members, error, room=lease.room, single=single)
        except CohortError:
            lease.release()
            _proceed(members)
        except Exception:
            lease.release()
            raise

    def _run_some(
        self,
        served: ServedVersion,
        members: Sequence[Member],
        error: Overloaded,
        *,
        room: int,
        single: bool,
    ) -> None:
        """Run as many as there is room for, and refuse the others together, which is cheap."""
        room = min(room, len(members) - 1)
        if room > 0:
            self._run_group(served, members[:room], single=single)
        refused = [one for one, *_ in members[max(room, 0) :] if not one.response_complete]
        self._refused(served.model, error, len(refused))
        _fail(refused, error)


def _reply(
    lease: GroupLease,
    members: Sequence[Member],
    outputs: Outputs | None,
    error: CohortError | None,
    *,
    single: bool,
) -> None:
    """Answer a group after its run; where one row may have failed it, retry them one by one."""
    if error is not None and not _may_be_one_rows_fault(error):
        lease.close(error)
        _fail([request for request, *_ in members], error)
        return
    bodies = None if outputs is None else _write(lease, outputs, single=single)
    if bodies is None or len(bodies) != len(members):
        lease.release()
        _proceed(members)
        return
    lease.close(left=sum([request.response_complete for request, _, _, _ in members]))
    served = lease.served
    for (request, _, _, _), body in zip(members, bodies, strict=True):
        if not request.response_complete:
            request.succeed(body, served)


def _write(lease: GroupLease, outputs: Outputs, *, single: bool) -> list[bytes] | None:
    served = lease.served
    if are_large(outputs):
        served.coalescible = False  # such responses are written on the codec thread, one by one
        return None
    return write_rows(
        [(served.outputs[position].name, outputs[position]) for position in served.sent],
        model=served.model,
        version=served.version,
        single=single,
        seconds=lease.seconds,
    )


def _may_be_one_rows_fault(error: CohortError) -> bool:
    """Whether the other rows may still succeed: not after a timeout or a failure of the device."""
    if isinstance(error, InferenceFailed):
        return error.blames_input
    return not isinstance(error, DeadlineExceeded)


def _fail(requests: Sequence[SmallRequest], error: Exception) -> None:
    for request in requests:
        if not request.response_complete:
            request.fail(error)


def _proceed(members: Sequence[Member]) -> None:
    for request, body, document, _ in members:
        if not request.response_complete:
            request.proceed_parsed(document, body)
