"""The statuses that end a call: https://grpc.github.io/grpc/core/md_doc_statuscodes.html."""

from __future__ import annotations

from enum import IntEnum


class StatusCode(IntEnum):
    """The statuses that this server sends, by number."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16
