"""The choice of the connections' class, so that what is off costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cohort.http.fast_path.logged import LoggedProtocol
from cohort.http.fast_path.protocol import HotProtocol
from cohort.http.fast_path.shared import Hot
from cohort.http.fast_path.traced import TracedProtocol


def protocol_factory(hot: Hot) -> Callable[..., HotProtocol]:
    """Return the `http` argument of `uvicorn.Config`."""
    if hot.tracer is not None:
        return partial(TracedProtocol, hot, hot.tracer)
    if hot.access_log is None:
        return partial(HotProtocol, hot)
    return partial(LoggedProtocol, hot, hot.access_log)
