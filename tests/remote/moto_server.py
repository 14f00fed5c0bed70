"""moto's S3-compatible server, which answers one request at a time: `python -m` with its arguments.

It looks for an object and puts it in two steps, so that of two who create one unless it is there,
both may succeed. S3 does it in one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from io import BytesIO
from typing import Any

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

LOCK = threading.Lock()


class OneAtATime:
    """The application of moto's server."""

    def __init__(self, *arguments: Any) -> None:
        self._application = DomainDispatcherApplication(*arguments)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request, once its whole body is there: a slow one must hold up no other."""
        length, body = environ.get("CONTENT_LENGTH"), environ["wsgi.input"]
        if length or environ.get("wsgi.input_terminated"):
            environ["wsgi.input"] = BytesIO(body.read(int(length)) if length else body.read())
        with LOCK:
            answer: Iterable[bytes] = self._application(environ, start_response)
            return answer


if __name__ == "__main__":
    vars(server)["DomainDispatcherApplication"] = OneAtATime
    server.main(sys.argv[1:])
