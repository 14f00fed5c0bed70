"""What every adapter does with a request that is refused or fails, whatever its protocol."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from app.errors import (
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


def log_refusal(
    log: FilteringBoundLogger, error: CohortError, request_id: str, **where: str
) -> None:
    """Log a request that was refused or failed, in one line.

    `where` says what was asked for: the path, or the method. A refusal is logged at info, without
    the values that the caller sent; a failure of the server at error, with its traceback.
    """
    about = {"code": error.code, **where, "request_id": request_id, **error.log_context}
    if isinstance(error, REFUSALS):
        log.info("refused", error=error.redacted, **about)
    else:
        log.error("failed", error=str(error), **about, exc_info=error.__cause__ or error)
