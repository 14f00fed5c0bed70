"""The fast path of the infer routes: uvicorn's HTTP protocol, answering them by itself.

A request over ASGI costs a scope, a task, and a call for each part of its body and response,
several times what a small model takes. Here a plain request to a known path goes from the parser to
the data plane and back to the socket by plain calls. Everything else, and everything unusual
(another method, HTTP/1.0, `Expect`, a query, escapes in the path, compression), goes to FastAPI,
whose routes answer the same: both use `app.rest.calls`, and a test compares them byte by byte.

It also mends what uvicorn gets wrong on either way: answers that a malformed request overtakes,
bodies lost when an upgrade is asked for, headers and trailers without end (the list is in
tests/rest/hot/test_protocol.py).

What is used of uvicorn: `HttpToolsProtocol` with its parser callbacks, `pipeline`, `cycle`, `flow`,
`server_state`, `_start_asgi_task` and `on_response_complete`; tests/rest/hot/test_uvicorn.py says
what broke when that changes.
"""

from app.rest.hot.protocol import protocol_factory
from app.rest.hot.shared import Hot

__all__ = ["Hot", "protocol_factory"]
