"""What every adapter does with a request that is refused or fails, whatever its protocol."""

from __future__ import annotations

from time import monotonic

from structlog.typing import FilteringBoundLogger

from cohort.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    Forbidden,
    InferenceFailed,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    NotReady,
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
)
"""Expected outcomes: none of them is a failure of the server."""


def known_error(error: Exception) -> CohortError:
    """`error` where it is one of ours; a bug becomes InferenceFailed without its words.

    The log has them, as `__cause__`.
    """
    if isinstance(error, CohortError):
        return error
    bug = InferenceFailed("the server failed; its log says more")
    bug.__cause__ = error
    return bug


class LineLimit:
    """Lets so many log lines of a kind through in a second, and counts those it does not.

    A line costs more than refusing a request does: thousands would be the load, not a record of it.

    per_second: Lines of one kind; default 20.
    """

    def __init__(self, per_second: int = 20) -> None:
        self._per_second = per_second
        self._counts: dict[str, tuple[float, int, int]] = {}  # since when, let through, left out

    def take(self, kind: str, now: float) -> int | None:
        """Ask for one line; None where it is left out.

        Else how many of its kind were left out since the last line. `now` is on the monotonic
        clock, in seconds.
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
    log: FilteringBoundLogger, error: CohortError, request_id: str, **where: str
) -> None:
    """Log a request that was refused or failed, in one line.

    `where` says what was asked for: the path, or the method. A refusal is logged at info, without
    the values that the caller sent; a failure of the server at error, with its traceback. Of each
    code, 20 lines a second are written; `left_out` in the next one says how many were not. The
    metrics count them all.
    """
    left_out = _lines.take(error.code, monotonic())
    if left_out is None:
        return
    if left_out:
        where["left_out"] = str(left_out)
    about = {"code": error.code, **where, "request_id": request_id, **error.log_context}
    if isinstance(error, REFUSALS):
        log.info("refused", error=error.redacted, **about)
    else:
        log.error("failed", error=str(error), **about, exc_info=error.__cause__ or error)
