"""Package indexes on loopback that have Cohort."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

MACHINE = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
"""The index for all that Cohort requires."""


class Index(SimpleHTTPRequestHandler):
    """An index that has Cohort alone."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Proxy(Index):
    """An index that redirects to the machine's for the rest, as an organisation's does."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Redirect instead of answering 404."""
        if code != HTTPStatus.NOT_FOUND or not self.path.startswith("/simple/"):
            super().send_error(code, message, explain)
            return
        self.send_response(HTTPStatus.FOUND)
        self.send_header("Location", MACHINE + self.path.removeprefix("/simple"))
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve_index(wheel: Path, folder: Path, kind: type[Index] = Index) -> Iterator[str]:
    """Serve a simple index (PEP 503) with this wheel; yield its address.

    folder: An empty folder for its pages.
    """
    page = folder / "simple" / wheel.name.partition("-")[0] / "index.html"
    page.parent.mkdir(parents=True)
    shutil.copy(wheel, page.parent)
    page.write_text(f'<!doctype html><a href="{quote(wheel.name)}">{wheel.name}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
