"""Errors and log lines of refused and failed requests, for all protocols."""

from __future__ import annotations

from time import monotonic

from structlog.typing import FilteringBoundLogger

from cohort.errors import (
    AlreadyLoaded,
    Cancelled,
    CohortError,
    DeadlineExceeded,
    Forbidden,
    InferenceFailed,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
    SequenceEnded,
    Unauthorized,
)

REFUSALS = (
    InvalidInput,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Overloaded,
    NotReady,
    Cancelled,
    DeadlineExceeded,
    SequenceEnded,
    AlreadyLoaded,
    OutOfMemory,
)
"""Expected errors; they are not failures of the server."""


def known_error(error: Exception) -> CohortError:
    """Return a CohortError as it is; turn any other error into InferenceFailed, without its text.

    The log shows the original error, which becomes `__cause__`.
    """
    if isinstance(error, CohortError):
        return error
    bug = InferenceFailed("the server failed; its log has the cause")
    bug.__cause__ = error
    return bug


class LineLimit:
    """A rate limit for log lines of each kind, which counts the lines left out.

    A line costs more than refusing a request: logging thousands of refusals would overload the
    server.

    per_second: Maximum lines of one kind in a second; default 20.
    """

    def __init__(self, per_second: int = 20) -> None:
        self._per_second = per_second
        self._counts: dict[str, tuple[float, int, int]] = {}  # second's start, written, left out

    def take(self, kind: str, now: float) -> int | None:
        """Return the number of lines left out since the last one, or None to leave this one out.

        `now` is on the monotonic clock, in seconds.
        """
        since, lines, left_out = self._counts.get(kind, (now, 0, 0))
        if now - since >= 1.0:
            since, lines = now, 0
        if lines >= self._per_second:
            self._counts[kind] = since, lines, left_out + 1
            return None
        self._counts[kind] = since, lines + 1, 0
        return left_out


_lines = LineLimit()


def log_refusal(
    log: FilteringBoundLogger,
    error: CohortError,
    request_id: str,
    trace_id: str = "",
    **where: str,
) -> None:
    """Log a request that was refused or failed, in one line.

    `where` contains the path or the method. A refusal is logged at info, without the values that
    the caller sent. A failure of the server is logged at error, with its traceback. Each code is
    limited to 20 lines a second; `left_out` in the next line counts the omitted ones. The metrics
    count all requests.

    trace_id: The request's trace; default "": no trace.
    """
    left_out = _lines.take(error.code, monotonic())
    if left_out is None:
        return
    if left_out:
        where["left_out"] = str(left_out)
    about = {"code": error.code, **where, "request_id": request_id, **error.log_context}
    if trace_id:
        about["trace_id"] = trace_id
    if isinstance(error, REFUSALS):
        log.info("refused", error=error.redacted, **about)
    else:
        log.error("failed", error=str(error), **about, exc_info=error.__cause__ or error)
