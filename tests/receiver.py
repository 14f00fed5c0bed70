"""A real web server that receives webhooks."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import PATIENCE


class Receiver:
    """A web server that receives notifications and answers with `statuses`; the last one repeats.

    A status of 0: it never answers.
    """

    def __init__(self, *statuses: int, port: int = 0) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append((headers, body))
                status = receiver.statuses[0]
                if len(receiver.statuses) > 1:
                    receiver.statuses.pop(0)
                if status == 0:
                    receiver.released.wait(PATIENCE)
                    status = 503
                self.send_response(status)
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.name = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://user:pass@{self.name}/token-in-path?q=token-in-query"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
