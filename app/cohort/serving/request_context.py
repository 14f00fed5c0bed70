"""The context of a request: its caller, headers, arrival and deadline."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from cohort.auth import Caller
from cohort.observability.request_ids import REQUEST_ID
from cohort.observability.tracing import RequestSpan
from cohort.registry import RequestNotes
from cohort.rollouts import Sticky

SEQUENCE_ID = "x-sequence-id"
"""The header that load balancers use to keep a sequence on one replica."""


class Headers(Protocol):
    """A request's headers, or its gRPC metadata, by lower-case name."""

    def get(self, key: str, /) -> str | None:
        """Return the first value of a header; None if it was not sent."""


_NO_HEADERS: Headers = MappingProxyType[str, str]({})
_NO_PARAMETERS: Mapping[str, object] = MappingProxyType({})


class RequestContext(NamedTuple):
    """The properties of a request that a wire knows, apart from its body.

    peer: Identifies its connection; None: not known.
    headers: Its headers, among them the trace context.
    request_id: The id that the caller or a load balancer sent; "": no valid id.
    caller: The key or token's owner; None: callers need no key.
    arrival: When its head was read, in seconds on the monotonic clock; 0.0: not measured.
    deadline: When its caller stops waiting, on the same clock; None: no deadline was sent.
    span: Its span; None: it is not traced.
    """

    peer: Hashable = None
    headers: Headers = _NO_HEADERS
    request_id: str = ""
    caller: Caller | None = None
    arrival: float = 0.0
    deadline: float | None = None
    span: RequestSpan | None = None

    @property
    def priority(self) -> int:
        """Its priority among requests; most have 0."""
        return 0 if self.caller is None else self.caller.priority

    def key_of(
        self, sticky: Sticky, parameters: Mapping[str, object] = _NO_PARAMETERS
    ) -> str | None:
        """Return the sticky key; None if the request has no such header or parameter.

        sticky: The header or parameter that holds the key.
        parameters: The request's parameters; a number or a boolean is written as in JSON. Default:
            empty.
        """
        if sticky.header:
            if sticky.header == REQUEST_ID and self.request_id:
                return self.request_id  # a wire may store it outside the headers
            return self.headers.get(sticky.header)
        value = parameters.get(sticky.parameter)
        if value is None or isinstance(value, str):
            return value
        return str(value).lower() if isinstance(value, bool) else str(value)


NOBODY = RequestContext()
"""The context of a request of which nothing is known."""


def notes_of(context: RequestContext, parameters: Mapping[str, object]) -> RequestNotes:
    """Return the parts of a request that are not inputs, for engines that use them."""
    caller = context.caller
    kept = context.headers.get("cache-control")
    return RequestNotes(
        parameters,
        "" if caller is None else caller.name,
        kept is not None and "no-store" in kept.lower(),
        context.headers.get(SEQUENCE_ID) or "",
    )
