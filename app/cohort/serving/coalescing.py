"""Coalescing: small requests read in one event-loop iteration run as one.

Most of the cost of a small request is not its model but the objects and calls made for each
request. If a model runs a row in less time than that, this cost limits requests per second.
Requests of a few rows for the same version, read in one iteration and answered in the same form,
are coalesced. They share one array, one lease, one run and one text that their responses are cut
from (docs/contributing/decisions/0008, 0043).

Requests that cannot be coalesced are answered one by one, with the same response. The checks that
need no parsed body come first: a model with long runs coalesces nothing. No body is parsed twice: a
single request continues with the document that was parsed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import Any

from cohort.batching import Outputs, RunResult
from cohort.codec import Asked, ResponseTemplate, RunOutputs, Selection, are_large, pack_rows
from cohort.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    Overloaded,
    forget_locals,
)
from cohort.observability.tracing import set_current
from cohort.registry import Cancellable
from cohort.serving.groups import Group, Intake, Member, QueuedRun, SmallRequest
from cohort.serving.lease import GroupLease, say_whose
from cohort.serving.observing import Observer
from cohort.serving.served import ServedVersion
from cohort.serving.targets import Target
from cohort.serving.traced import GroupSpans
from cohort.tensors import Array

COALESCED_RUN_SECONDS = 0.01
"""Time that coalesced runs may occupy the event loop in one iteration, while sockets wait.

The remaining groups are queued. They also run on the loop, at more than twice the cost of each.
That happens with a hundred models, which have a group each.
"""


class Coalescer:
    """Gathers the requests of an event-loop iteration and runs those that fit as groups.

    target: Returns the target of coalesced requests for a model or a version; None if they are not
        coalesced.
    admit: Raises NotReady or Overloaded if a number of requests of a priority cannot be accepted.
    lease: Takes a GroupLease. Its arguments are version, variant, arrival of the first
        request in seconds on the monotonic clock, number of requests, and priority.
        Raises as `admit`.
    room: Returns how many more requests of a priority a version accepts.
    refused: Counts refused requests, from the model, the error, and the number of requests.
    observer: Is notified when requests end.
    gather: Calls a function once all sockets of this event-loop iteration have been read, before
        the scheduler looks for the next batch.
    spans: Adds the stages of requests to their spans; default None: nothing is traced.
    """

    def __init__(
        self,
        *,
        target: Callable[[Asked], Target | None],
        admit: Callable[[int, int], None],
        lease: Callable[[ServedVersion, str, float, int, int], GroupLease],
        room: Callable[[ServedVersion, int], int],
        refused: Callable[[str, CohortError, int], None],
        observer: Observer,
        gather: Callable[[Callable[[], None]], None],
        spans: GroupSpans | None = None,
    ) -> None:
        self._spans = spans
        self._target = target
        self._admit = admit
        self._lease = lease
        self._room = room
        self._refused = refused
        self._observer = observer
        self._gather = gather
        self._waiting: list[tuple[SmallRequest, Intake, bytes]] = []
        self._since = 0.0  # when the first waiting request was read
        self._until = 0.0  # groups may run until then in this iteration

    def add(self, request: SmallRequest, intake: Intake, body: bytes) -> None:
        """Keep a request until the end of the iteration. Its headers have been checked.

        intake: The properties that are known before the body is read.
        body: The whole body, not parsed yet.
        """
        if not self._waiting:
            self._since = monotonic()
            self._gather(self._answer_all)
        self._waiting.append((request, intake, body))

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._until = monotonic() + COALESCED_RUN_SECONDS
        try:
            for group in self._group(waiting):
                if group.rows <= group.limit:
                    self._run(group, group.members)
                else:
                    for members in group.runs():
                        self._run(group, members)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the callers get a response
            _fail([request for request, _, _ in waiting], bug)

    def _group(self, waiting: Sequence[tuple[SmallRequest, Intake, bytes]]) -> Collection[Group]:
        """Parse each body once; requests that cannot be coalesced continue as single ones."""
        groups: dict[tuple[Selection, ResponseTemplate, int], Group] = {}
        targets: dict[Asked, Target | None] = {}
        last: Group | None = None
        target: Target | None = None
        asked_for: Asked = ""  # `target` belongs to it; no model has this name
        for request, (reader, by_path, priority), body in waiting:
            if request.response_complete:
                continue  # its client disconnected in the same iteration
            if by_path is not None:
                if by_path != asked_for:
                    asked_for = by_path
                    if asked_for not in targets:
                        targets[asked_for] = self._target(asked_for)
                    target = targets[asked_for]
                if target is None:
                    request.proceed(body)
                    continue
            try:
                document, wanted = reader.read(body)
            except InvalidInput as error:
                request.refuse(error)
                continue
            if wanted is None:
                _continue(request, document, body)
                continue
            by_body = wanted.asked
            if by_body != asked_for and (by_body is not None or by_path is None):
                if by_path is not None:
                    _continue(
                        request, document, body
                    )  # compares the model of the path with that of the body
                    continue
                asked_for = by_body
                if asked_for not in targets:
                    targets[asked_for] = self._target(asked_for)
                target = targets[asked_for]
            chosen = None if target is None else target.fixed or target.choose(request)
            if target is None or chosen is None:
                _continue(request, document, body)
                continue
            served, variant, limit, caller = chosen
            values, rows, spec = wanted.values, wanted.rows, served.inputs[0]
            size = served.width if values.__class__ is list else served.row_bytes
            if (
                rows > limit
                or len(values) != rows * size
                or (wanted.name is not None and wanted.name != spec.name)
                or (wanted.datatype is not None and wanted.datatype != spec.datatype)
            ):
                _continue(request, document, body)
                continue
            if (
                last is None
                or wanted.template is not last.template
                or served is not last.served
                or variant != last.variant
                or priority != last.priority
            ):
                template = wanted.template
                selection = served.selection(template.outputs, variant, template.top)
                if selection is None:
                    _continue(request, document, body)
                    continue
                key = (selection, template, priority)
                last = groups.get(key)
                if last is None:
                    last = groups[key] = Group(target, served, selection, template, priority, limit)
            last.members.append((request, wanted, caller))
            last.rows += rows
        return groups.values()

    def _run(self, group: Group, members: Sequence[Member]) -> None:
        """Run members of a group at once if possible; otherwise queue their run."""
        spec = group.served.inputs[0]
        if len(members) == 1:
            _, wanted, _ = members[0]
            rows = wanted.rows
            array = pack_rows((wanted.body,), (wanted.values,), spec, rows)
        else:
            rows = sum([wanted.rows for _, wanted, _ in members])
            bodies = [wanted.body for _, wanted, _ in members]
            array = pack_rows(bodies, [wanted.values for _, wanted, _ in members], spec, rows)
        if array is None:
            _proceed(members)
            return
        try:
            if (now := monotonic()) < self._until:
                self._admit(len(members), group.priority)
                result = group.served.engine.run_now(
                    {spec.name: array}, self._since, rows, len(members)
                )
                if result is not None:
                    self._reply(group, members, array, result, self._since, now)
                    return
            self._submit(group, members, array, now)
        except Overloaded as error:
            self._run_some(group, members, error)
        except CohortError:
            _proceed(members)

    def _submit(self, group: Group, members: Sequence[Member], array: Array, queued: float) -> None:
        """Queue a run. Raises as the lease and the engine do."""
        since = self._since
        lease = self._lease(group.served, group.variant, since, len(members), group.priority)

        run = QueuedRun(lease, len(members))

        def reply(outputs: Outputs | None, error: CohortError | None) -> None:
            for one in members:
                one[0].run = None
            if not run.ticket.when_over(run.end):
                run.end()
            self._reply(group, members, array, (outputs, error), since, queued, run.ticket)

        try:
            run.ticket = lease.submit(array, reply)
        except Exception:
            lease.release()
            raise
        for one in members:
            one[0].run = run

    def _run_some(self, group: Group, members: Sequence[Member], error: Overloaded) -> None:
        """Run as many requests as there is room for, and refuse the others together."""
        room = self._room(group.served, group.priority)
        room = max(min(room, len(members) - 1), 0)
        if room:
            self._run(group, members[:room])
        refused = [one[0] for one in members[room:] if not one[0].response_complete]
        self._refused(group.served.model, error, len(refused))
        _fail(refused, error)

    def _reply(
        self,
        group: Group,
        members: Sequence[Member],
        array: Array,
        result: RunResult,
        since: float,
        queued: float,
        ticket: Cancellable | None = None,
    ) -> None:
        """Answer members after their run. If one row may have failed the run, retry one by one.

        since: When the first of them was read, in seconds on the monotonic clock.
        queued: When the run was queued, or began at once, on the same clock.
        ticket: Its place in the queue; default None: it began at once.
        """
        outputs, error = result
        now = monotonic()
        seconds = now - since
        counted = False
        try:
            if outputs is None:
                if error is None or _may_be_one_rows_fault(error):
                    forget_locals(error)
                    _proceed(members)
                    return
                self._count(group, len(members), seconds, error)
                counted = True
                if self._spans is not None:
                    self._spans.failed(group, members, error.code)
                _fail([one[0] for one in members], error)
                group.target.failed(group, members, array, error, seconds, now)
                forget_locals(error)
                return
            written = _write(group, members, outputs, seconds)
            if written is None:
                _proceed(members)
                return
            traced = None
            if self._spans is not None:
                traced = self._spans.answered(group, members, since, queued, now, ticket)
            gone = [place for place, one in enumerate(members) if one[0].response_complete]
            if gone:
                cancelled = Cancelled("the client disconnected or cancelled")
                self._count(group, len(gone), seconds, cancelled)
            if answered := len(members) - len(gone):
                self._observer.ended(group.served, group.variant, None, seconds, answered)
            counted = True
            for one, (body, headers) in zip(members, written, strict=False):
                request = one[0]
                if not request.response_complete:
                    request.succeed(body, headers, group)
            if traced is None:
                group.target.answered(group, members, gone, array, outputs, seconds, now)
            else:
                with set_current(traced):
                    group.target.answered(group, members, gone, array, outputs, seconds, now)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the callers get a response
            if not counted:
                self._count(group, len(members), seconds, InferenceFailed(str(bug)))
            _fail([one[0] for one in members], bug)

    def _count(self, group: Group, times: int, seconds: float, error: CohortError) -> None:
        """Count requests of a group that ended with the same error."""
        say_whose(error, group.served, group.variant)
        self._observer.ended(group.served, group.variant, error, seconds, times)


def _write(
    group: Group, members: Sequence[Member], outputs: Outputs, seconds: float
) -> Iterable[tuple[bytes, Any]] | None:
    if are_large(outputs):
        group.served.coalescible = False  # they are written on the codec thread, one by one
        return None
    arrays = [outputs[position] for position in group.selection.positions]
    counts = [wanted.rows for _, wanted, _ in members]
    ids = [wanted.id for _, wanted, _ in members]
    return group.template.write(RunOutputs(group.selection, arrays, seconds, counts, ids))


def _may_be_one_rows_fault(error: CohortError) -> bool:
    """Return True if other rows may succeed: not after a timeout or a failure of the device."""
    if isinstance(error, InferenceFailed):
        return error.blames_input
    return not isinstance(error, DeadlineExceeded)


def _fail(requests: Sequence[SmallRequest], error: Exception) -> None:
    for request in requests:
        if not request.response_complete:
            request.fail(error)


def _continue(request: SmallRequest, document: object, body: bytes) -> None:
    if document is None:
        request.proceed(body)
    else:
        request.proceed_parsed(document, body)


def _proceed(members: Sequence[Member]) -> None:
    for request, wanted, _ in members:
        if not request.response_complete:
            _continue(request, wanted.document, wanted.body)
