"""What is known of a request besides what it asks: who sends it, and by when it is wanted."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from cohort.auth import Caller
from cohort.observability.request_ids import REQUEST_ID
from cohort.registry import RequestNotes
from cohort.rollouts import Sticky

SEQUENCE_ID = "x-sequence-id"
"""The header by which balancers keep a sequence on one replica."""


class Headers(Protocol):
    """A request's headers, or over gRPC its metadata, by lower-case name."""

    def get(self, key: str, /) -> str | None:
        """The first value of a header; None where it was not sent."""


_NO_HEADERS: Headers = MappingProxyType[str, str]({})
_NO_PARAMETERS: Mapping[str, object] = MappingProxyType({})


class RequestContext(NamedTuple):
    """What a wire knows of a request besides what it asks.

    peer: What tells its connection from others; None: not known.
    headers: What was sent beside its body; among them the trace that it belongs to.
    request_id: The id that the caller or a load balancer sent; "": none that can be passed on.
    caller: Whose it is; None: callers need no key.
    arrival: When its head was read, in seconds on the monotonic clock; 0.0: nobody asked.
    deadline: When its caller stops waiting, on the same clock; None: it did not say.
    """

    peer: Hashable = None
    headers: Headers = _NO_HEADERS
    request_id: str = ""
    caller: Caller | None = None
    arrival: float = 0.0
    deadline: float | None = None

    @property
    def priority(self) -> int:
        """Its priority among requests; 0 is that of most."""
        return 0 if self.caller is None else self.caller.priority

    def key_of(
        self, sticky: Sticky, parameters: Mapping[str, object] = _NO_PARAMETERS
    ) -> str | None:
        """Its value of what keeps its caller on a variant; None where it has none.

        sticky: The header or parameter that holds the key.
        parameters: The request's; a number or a boolean is written as in JSON. Default: none.
        """
        if sticky.header:
            if sticky.header == REQUEST_ID and self.request_id:
                return self.request_id  # a wire may keep it apart from the headers
            return self.headers.get(sticky.header)
        value = parameters.get(sticky.parameter)
        if value is None or isinstance(value, str):
            return value
        return str(value).lower() if isinstance(value, bool) else str(value)


NOBODY = RequestContext()
"""The context of a request of which nothing is known."""


def notes_of(context: RequestContext, parameters: Mapping[str, object]) -> RequestNotes:
    """What a request says beside its inputs, for an engine that wants to know."""
    caller = context.caller
    kept = context.headers.get("cache-control")
    return RequestNotes(
        parameters,
        "" if caller is None else caller.name,
        kept is not None and "no-store" in kept.lower(),
        context.headers.get(SEQUENCE_ID) or "",
    )
