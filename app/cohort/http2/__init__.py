"""HTTP/2 for gRPC: connections on the event loop, which exchange messages with calls.

https://www.rfc-editor.org/rfc/rfc9113, https://www.rfc-editor.org/rfc/rfc7541 and
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. A library's server makes a task and
a dozen objects for each call. That costs five times as much as all other work for a small call
(docs/contributing/decisions/0037-an-http2-server-of-our-own.md).
"""

from cohort.http2.connection import ConnectionLimits, Http2Connection
from cohort.http2.frames import ErrorCode
from cohort.http2.heads import CallHeads
from cohort.http2.serving import SHUTTING_DOWN, SentMessage, ServedStream
from cohort.http2.streams import Stream

__all__ = [
    "SHUTTING_DOWN",
    "CallHeads",
    "ConnectionLimits",
    "ErrorCode",
    "Http2Connection",
    "SentMessage",
    "ServedStream",
    "Stream",
]
