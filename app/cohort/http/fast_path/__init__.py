"""The fast path of inference routes: uvicorn's HTTP protocol, which answers them without ASGI.

A request over ASGI costs a scope, a task, and a call for each part of its body and response. That
is several times the run time of a small model. Here a request to a known path goes from the parser
to the data plane and back to the socket in plain calls. It supports HTTP/1.1 and 1.0, kept and
closing connections, queries and any number of segments (decision 0051). A head seen before is not
parsed again. FastAPI answers everything else: other methods, `Expect`, escapes in the path,
compressed bodies. Both use `cohort.http.calls`, and a test compares their responses byte by byte.

It also corrects faults of uvicorn for both paths. Responses were overtaken by the error of a later
malformed request, bodies were lost on upgrade requests, and headers and trailers had no size limit.
The list is in tests/http/fast_path/test_protocol.py.

It uses these parts of uvicorn: `HttpToolsProtocol` with its parser callbacks, `pipeline`, `cycle`,
`flow`, `server_state`, `_start_asgi_task` and `on_response_complete`. A change in one of them fails
tests/http/fast_path/test_uvicorn.py.
"""

from cohort.http.fast_path.factory import protocol_factory
from cohort.http.fast_path.idle import WatchedConnection
from cohort.http.fast_path.shared import Hot

__all__ = ["Hot", "WatchedConnection", "protocol_factory"]
