"""The fast path of the infer routes: uvicorn's HTTP protocol, answering them by itself.

A request over ASGI costs a scope, a task, and a call for each part of its body and response,
several times what a small model takes. Here a request to a known path goes from the parser to the
data plane and back to the socket by plain calls: over HTTP/1.1 or 1.0, kept or closing, with a
query, in however many segments (decision 0051). A head that came before is not parsed again.
Everything else (another method, `Expect`, escapes in the path, a compressed body) goes to FastAPI,
whose routes answer the same: both use `cohort.http.calls`, and a test compares them byte by byte.

It also corrects faults of uvicorn for both paths: responses overtaken by the error of a later
malformed request, bodies lost when an upgrade is requested, headers and trailers of unlimited size
(the list is in tests/http/fast_path/test_protocol.py).

It uses these parts of uvicorn: `HttpToolsProtocol` with its parser callbacks, `pipeline`, `cycle`,
`flow`, `server_state`, `_start_asgi_task` and `on_response_complete`; a change of one of them fails
tests/http/fast_path/test_uvicorn.py.
"""

from cohort.http.fast_path.idle import WatchedConnection
from cohort.http.fast_path.logged import protocol_factory
from cohort.http.fast_path.shared import Hot

__all__ = ["Hot", "WatchedConnection", "protocol_factory"]
