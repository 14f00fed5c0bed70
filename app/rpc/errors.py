"""What an error is in gRPC, in one table, on every call, whatever raised it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import structlog
from grpc import StatusCode

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

log = structlog.get_logger("cohort.rpc")

STATUS: Mapping[type[CohortError], StatusCode] = {
    InvalidInput: StatusCode.INVALID_ARGUMENT,
    Unauthorized: StatusCode.UNAUTHENTICATED,
    Forbidden: StatusCode.PERMISSION_DENIED,
    NotFound: StatusCode.NOT_FOUND,
    MethodNotAllowed: StatusCode.UNIMPLEMENTED,
    Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    NotReady: StatusCode.UNAVAILABLE,
    Cancelled: StatusCode.CANCELLED,
    DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    InferenceFailed: StatusCode.INTERNAL,
}

LONGEST_DETAILS = 2000
"""Bytes; clients refuse metadata past 8 KB, and gRPC writes some bytes as three."""

Metadata = tuple[tuple[str, str], ...]


def status_of(error: CohortError) -> StatusCode:
    """The status of the nearest kind of error in the table; INTERNAL for what is in none."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return StatusCode.INTERNAL


def details_of(error: CohortError) -> str:
    """The sentence, bounded."""
    text = str(error).encode(errors="replace")
    if len(text) <= LONGEST_DETAILS:
        return text.decode()
    return text[:LONGEST_DETAILS].decode(errors="ignore") + "…"


def metadata_of(error: CohortError) -> Metadata:
    """What else a client should know: the error's name, and when to come back.

    A client with a retry policy waits as long as `grpc-retry-pushback-ms` says
    (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
    """
    name = ("error-code", error.code)
    if isinstance(error, Overloaded | NotReady):
        return (name, ("grpc-retry-pushback-ms", str(max(1, math.ceil(error.retry_after * 1000)))))
    return (name,)


def known(error: Exception) -> CohortError:
    """`error` where it is ours; a bug is told without its words, which the log has."""
    if isinstance(error, CohortError):
        return error
    bug = InferenceFailed("the server failed; its log says more")
    bug.__cause__ = error
    return bug


def log_refusal(error: CohortError, method: str, request_id: str) -> None:
    """One line per request that was refused or failed: a client's mistake without a traceback."""
    known = {"code": error.code, "method": method, **error.about}
    if request_id:
        known["request_id"] = request_id
    if status_of(error) is StatusCode.INTERNAL:
        log.error("failed", error=str(error), **known, exc_info=error.__cause__ or error)
    else:
        log.info("refused", error=error.redacted, **known)
