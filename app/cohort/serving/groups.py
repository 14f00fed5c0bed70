"""Groups of small requests that are answered together, and the keys that they are grouped by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from cohort.codec import Asked, ResponseTemplate, RowRequest, Selection
from cohort.errors import CohortError
from cohort.observability.tracing import RequestSpan
from cohort.registry import Cancellable
from cohort.serving.lease import GroupLease
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion
from cohort.serving.targets import Target


class QueuedRun:
    """The run of a group, waiting or in progress.

    ticket: Its place in the queue.

    lease: The group's hold on its version.
    members: The number of requests that wait for it.
    """

    __slots__ = ("_lease", "_left", "_waiting", "ticket")

    ticket: Cancellable

    def __init__(self, lease: GroupLease, members: int) -> None:
        self._lease = lease
        self._waiting = members
        self._left: list[Callable[[], None]] = []

    def leave(self, then: Callable[[], None]) -> None:
        """Remove a member after its client disconnected. `then` is called at the end of the run.

        The run is cancelled once no member waits for it.
        """
        self._left.append(then)
        self._waiting -= 1
        if not self._waiting:
            self.ticket.cancel()
            if not self.ticket.when_over(self.end):
                self.end()

    def end(self) -> None:
        """End the run: release the version and call all `then` of `leave`."""
        self._lease.release()
        for then in self._left:
            then()


class RowReader(Protocol):
    """Reads the request bodies of an API."""

    @property
    def read(self) -> Callable[[bytes], tuple[Any, RowRequest | None]]:
        """Parses a body as `cohort.http.calls.RowForm` does. Raises InvalidInput."""


class SmallRequest(Protocol):
    """A request that may be coalesced."""

    run: QueuedRun | None
    """The group's run that it waits for; None if it waits for none."""

    @property
    def response_complete(self) -> bool:
        """True if it needs no response because it was answered or its client disconnected."""

    @property
    def span(self) -> RequestSpan | None:
        """The span of the request; None: it is not traced."""

    @property
    def context(self) -> RequestContext:
        """The context of the request."""

    def proceed(self, body: bytes) -> None:
        """Continue as a single request, with a body that is not parsed yet."""

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Continue as a single request, with the document parsed from the body."""

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that was found before a version was chosen."""

    def succeed(self, body: bytes, headers: Any, group: Group) -> None:
        """Answer with the body and headers of a successful response of its `group`."""

    def fail(self, error: Exception) -> None:
        """Answer with an error."""


class Intake(NamedTuple):
    """Properties that requests may share before their bodies are read.

    reader: Reads their bodies.
    asked: The model or version in their path; None if the body may name it.
    priority: Their priority.
    """

    reader: RowReader
    asked: Asked = None
    priority: int = 0


Member = tuple[SmallRequest, RowRequest, int | None]
"""A coalesced request, its parsed rows, and a hash that identifies its caller."""


class Group:
    """Requests of one priority that the same version answers in the same form.

    target: The target that the version came from.
    served: The version.
    selection: The requested outputs, and the rollout's variant that chose the version.
    template: Writes their responses.
    priority: Their priority.
    limit: The maximum of rows in a run.
    members: The requests.
    rows: The sum of their rows.
    """

    __slots__ = (
        "limit", "members", "priority", "rows", "selection", "served", "target", "template",
        "variant",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        served: ServedVersion,
        selection: Selection,
        template: ResponseTemplate,
        priority: int,
        limit: int,
    ) -> None:
        self.target = target
        self.served = served
        self.selection = selection
        self.variant = selection.variant
        self.template = template
        self.priority = priority
        self.limit = limit
        self.members: list[Member] = []
        self.rows = 0

    def runs(self) -> Iterator[Sequence[Member]]:
        """Divide the members into runs of at most `limit` rows."""
        run: list[Member] = []
        rows = 0
        for member in self.members:
            _, wanted, _ = member
            if rows + wanted.rows > self.limit:
                yield run
                run, rows = [], 0
            run.append(member)
            rows += wanted.rows
        yield run
