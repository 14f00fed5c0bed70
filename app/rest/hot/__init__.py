"""The fast way to the infer paths: uvicorn's HTTP protocol, answering them by itself.

A request that ASGI carries costs a scope, a task, and a call for each part of body and answer,
several times what a small model takes. Here a plain request to a known path goes from the parser to
the data plane and back to the socket by plain calls. Everything else, and everything unusual
(another method, HTTP/1.0, `Expect`, an upgrade, a query, escapes in the path, compression), goes to
FastAPI, whose routes answer the same: both go the way of `app.rest.calls`, and a test compares them
byte by byte.

What is used of uvicorn: `HttpToolsProtocol` with its parser callbacks, `pipeline`, `cycle`, `flow`,
`server_state` and `_start_asgi_task`; tests/rest/test_uvicorn.py says what broke when that changes.
"""

from app.rest.hot.protocol import Hot, protocol

__all__ = ["Hot", "protocol"]
