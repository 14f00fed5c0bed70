"""Small requests that are answered together, and what they are gathered by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from cohort.codec import Asked, ResponseTemplate, RowRequest, Selection
from cohort.errors import CohortError
from cohort.registry import Cancellable
from cohort.serving.lease import GroupLease
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion
from cohort.serving.targets import Target


class QueuedRun:
    """The run of a group that waits, or goes on.

    ticket: Its place in the queue.

    lease: What it holds.
    members: How many requests wait for it.
    """

    __slots__ = ("_lease", "_left", "_waiting", "ticket")

    ticket: Cancellable

    def __init__(self, lease: GroupLease, members: int) -> None:
        self._lease = lease
        self._waiting = members
        self._left: list[Callable[[], None]] = []

    def leave(self, then: Callable[[], None]) -> None:
        """A member's caller left: call `then` at the end of the run, which nobody needs perhaps."""
        self._left.append(then)
        self._waiting -= 1
        if not self._waiting:
            self.ticket.cancel()
            if not self.ticket.when_over(self.end):
                self.end()

    def end(self) -> None:
        """It is over."""
        self._lease.release()
        for then in self._left:
            then()


class RowReader(Protocol):
    """How the bodies of an API are read."""

    @property
    def read(self) -> Callable[[bytes], tuple[Any, RowRequest | None]]:
        """Parses a body, as `cohort.http.calls.RowForm` has it. Raises InvalidInput."""


class SmallRequest(Protocol):
    """A request that may be coalesced."""

    run: QueuedRun | None
    """What it waits for with others; None: it does not."""

    @property
    def response_complete(self) -> bool:
        """Whether it needs no response any more: its caller left."""

    @property
    def context(self) -> RequestContext:
        """Who sends it."""

    def proceed(self, body: bytes) -> None:
        """Continue as a single request, with a body that is not parsed yet."""

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Continue as a single request, with the document that the body was parsed to."""

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that was found before a version was chosen."""

    def succeed(self, body: bytes, headers: Any, group: Group) -> None:
        """Answer with the body and headers of a successful response, which its `group` got."""

    def fail(self, error: Exception) -> None:
        """Answer with an error."""


class Intake(NamedTuple):
    """What requests may have in common before their bodies are read.

    reader: Reads their bodies.
    asked: What their path says is to answer; None where their bodies may.
    priority: Theirs.
    """

    reader: RowReader
    asked: Asked = None
    priority: int = 0


Member = tuple[SmallRequest, RowRequest, int | None]
"""A request that is coalesced, what it asks for, and what tells its caller from others."""


class Group:
    """Requests of one priority that the same version answers in the same form.

    target: Where the version came from.
    served: The version.
    selection: The outputs that are asked for, and the rollout's variant that chose the version.
    template: How their responses are written.
    priority: Theirs.
    limit: The rows of a run.
    members: The requests.
    rows: How many rows they have.
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
        """Its members, run by run."""
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
