"""Small requests that are answered together, and what they are gathered by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from cohort.codec import Asked, RowAnswer, RowRequest, Values
from cohort.errors import CohortError
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion
from cohort.serving.targets import Target


class RowReader(Protocol):
    """How the bodies of an API are read."""

    @property
    def read(self) -> Callable[[bytes], tuple[Any, RowRequest | None]]:
        """Parses a body, as `cohort.http.calls.RowForm` has it. Raises InvalidInput."""


class SmallRequest(Protocol):
    """A request that may be coalesced."""

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


Waiting = tuple[SmallRequest, RowReader, Asked, bytes, int]
"""A request, how it is read, what its path says is to answer (None: its body may), its body, and
its priority.
"""

Member = tuple[SmallRequest, bytes, object, Values, int, str | None, int | None]
"""A request that is coalesced: its body as it came and parsed, its numbers and how many rows they
are, what its caller calls it, and what tells its caller from others.

Plain tuples, as one of each is made per request.
"""


class Group:
    """Requests of one priority that the same version answers in the same form.

    target: Where the version came from.
    served: The version.
    variant: The rollout's variant that chose it; "": none did.
    priority: Theirs.
    answer: The form.
    selection: The outputs that are asked for; None: not all of them are the version's.
    limit: The rows of a run.
    members: The requests.
    rows: How many rows they have.
    """

    __slots__ = (
        "answer", "limit", "members", "priority", "rows", "selection", "served", "target",
        "variant",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        served: ServedVersion,
        variant: str,
        priority: int,
        answer: RowAnswer,
        limit: int,
    ) -> None:
        self.target = target
        self.served = served
        self.variant = variant
        self.priority = priority
        self.answer = answer
        self.selection = served.selection(answer.outputs)
        self.limit = limit
        self.members: list[Member] = []
        self.rows = 0

    def runs(self) -> Iterator[Sequence[Member]]:
        """Its members, run by run."""
        run: list[Member] = []
        rows = 0
        for member in self.members:
            if rows + member[4] > self.limit:
                yield run
                run, rows = [], 0
            run.append(member)
            rows += member[4]
        yield run
