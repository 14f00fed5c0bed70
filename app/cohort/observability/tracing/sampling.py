"""A quick answer to whether a request may be sampled, before the SDK is asked.

The SDK takes several microseconds for a span that it drops. Most requests of a server with sampling
are dropped, so the standard samplers are decided here. The SDK decides about all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import getrandbits

Carrier = Sequence[tuple[bytes, bytes]]
"""The headers of a request: lower-case names, and values."""

TRACEPARENT = b"traceparent"

_VALID = re.compile(
    "(?!ff|00-.{53})[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]([0-9a-f])(?:-.*)?"
)
"""A valid traceparent: the trace id, and the digit with the sampled flag.

https://www.w3.org/TR/trace-context/#traceparent-header
"""

_SAMPLED = frozenset("13579bdf")
"""The digits that have the sampled flag."""

_ID_BITS = (1 << 64) - 1
"""The bits of a trace id that the SDK's ratio sampler compares."""

W3C = frozenset({"tracecontext", "baggage"})
"""The propagators that read no other header than traceparent for the parent."""

QUICK = frozenset({"always_on", "always_off", "traceidratio"})
"""The samplers that are decided here, with and without `parentbased_`."""


class QuickSampling:
    """Excludes requests that the environment's sampler is certain to drop.

    chosen: The trace id that the last root was sampled with; 0: the SDK generates one.

    environment: The `OTEL_*` variables.
    bound: The bound below which the SDK samples a trace id by its ratio; None: no ratio.
    """

    def __init__(self, environment: Mapping[str, str], bound: int | None) -> None:
        name = environment.get("OTEL_TRACES_SAMPLER", "").lower()
        propagators = environment.get("OTEL_PROPAGATORS", "").lower().replace(" ", "").split(",")
        named = {one for one in propagators if one}
        self.chosen = 0
        kind = name.removeprefix("parentbased_") or "always_on"
        self._quick = kind in QUICK and (not named or ("tracecontext" in named and named <= W3C))
        self._parents = not name or name.startswith("parentbased_")
        self._never = kind == "always_off"
        self._bound = bound if kind == "traceidratio" else None

    def may_sample(self, traceparent: str | None) -> bool:
        """Return False if a request with this header is certain to be dropped."""
        if not self._quick:
            return True
        if traceparent is not None and (parent := _VALID.fullmatch(traceparent)) is not None:
            if self._parents:
                return parent[2] in _SAMPLED
            return not self._never
        if self._bound is None:
            return not self._never
        chosen = getrandbits(128)
        if chosen & _ID_BITS >= self._bound:
            return False
        self.chosen = chosen
        return True


def trace_id_in(traceparent: str | None) -> str:
    """Return the trace id of a traceparent, in hex; "" without a valid one."""
    parent = None if traceparent is None else _VALID.fullmatch(traceparent)
    return "" if parent is None else parent[1]


def traceparent_in(carrier: Carrier) -> str | None:
    """Return the header traceparent; None if it was not sent."""
    for name, value in carrier:
        if name == TRACEPARENT:
            return value.decode("latin-1")
    return None
