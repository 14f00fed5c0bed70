"""The status and the details of each error, in one table, for every call."""

from __future__ import annotations

import math
from collections.abc import Mapping

import structlog

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
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from cohort.observability.refusals import log_refusal
from cohort.observability.request_ids import REQUEST_ID
from cohort.rpc.status import StatusCode

log = structlog.get_logger("cohort.rpc")


class MessageTooLarge(TooLarge):
    """A message that is too large; gRPC does not report it as an invalid argument."""

    @property
    def code(self) -> str:
        """Return the code of TooLarge."""
        return TooLarge.__name__


GRPC_STATUS: Mapping[type[CohortError], StatusCode] = {
    InvalidInput: StatusCode.INVALID_ARGUMENT,
    MessageTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    Unauthorized: StatusCode.UNAUTHENTICATED,
    Forbidden: StatusCode.PERMISSION_DENIED,
    NotFound: StatusCode.NOT_FOUND,
    MethodNotAllowed: StatusCode.UNIMPLEMENTED,
    SequenceEnded: StatusCode.FAILED_PRECONDITION,
    UnsupportedMedia: StatusCode.UNIMPLEMENTED,
    Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    NotReady: StatusCode.UNAVAILABLE,
    Cancelled: StatusCode.CANCELLED,
    DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    InferenceFailed: StatusCode.INTERNAL,
}

MAX_DETAILS = 2000
"""Bytes; clients refuse metadata past 8 KB, and gRPC writes some bytes as three."""

TrailingMetadata = tuple[tuple[str, str], ...]


def grpc_status(error: CohortError) -> StatusCode:
    """Return the status of the error's nearest class in the table; INTERNAL if there is none."""
    for kind in type(error).__mro__:
        if kind in GRPC_STATUS:
            return GRPC_STATUS[kind]
    return StatusCode.INTERNAL


def details_of(error: CohortError) -> str:
    """Return the error's text, limited to MAX_DETAILS bytes."""
    text = str(error).encode(errors="replace")
    if len(text) <= MAX_DETAILS:
        return text.decode()
    return text[:MAX_DETAILS].decode(errors="ignore") + "…"


def metadata_of(error: CohortError, request_id: str) -> TrailingMetadata:
    """Return trailing metadata: the error's name, the request's id and the retry delay.

    A client with a retry policy waits for `grpc-retry-pushback-ms`
    (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
    """
    about = (("error-code", error.code), (REQUEST_ID, request_id))
    if isinstance(error, Overloaded | NotReady) and error.retry_after is not None:
        wait = str(max(1, math.ceil(error.retry_after * 1000)))
        return (*about, ("grpc-retry-pushback-ms", wait))
    return about


def log_grpc_refusal(error: CohortError, method: str, request_id: str, trace_id: str = "") -> None:
    """Log one line for a call of `method` that was refused or failed.

    trace_id: Its trace; default "": no trace.
    """
    log_refusal(log, error, request_id, trace_id, method=method)
