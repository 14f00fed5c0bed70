"""Files of a web server, requested from that host only.

A redirect to another host is rejected with an error that names the host. Otherwise, a response
could make this process send requests to hosts that only it can reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cohort.errors import RemoteFailed, quoted

PORTS = {"http": 80, "https": 443}

READ_SECONDS = 20.0
"""Seconds without a byte after which a request fails."""

RETRIES, RETRYING_SECONDS = 2, 10.0

FETCH_BYTES = 1 << 16


class RangesRefused(RemoteFailed):
    """The server sends only whole files."""

    def __init__(self) -> None:
        super().__init__("the server gives whole files only")


class NotThere(RemoteFailed):
    """The server has no such file."""


class WebServer:
    """The files below an address. Its methods block and raise RemoteFailed.

    address: The address, such as https://models.example.com/all.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._open = build_opener(_OwnRedirects(address)).open

    def stream(self, path: str, offset: int, seconds: float) -> Iterator[bytes]:
        """Yield a file's content from `offset` on, in pieces of up to FETCH_BYTES.

        seconds: Maximum duration.

        Raises RangesRefused if the server sends only whole files.
        """
        where, ends = f"{self._address}/{path}", time.monotonic() + seconds
        request = Request(f"{self._address}/{quote(path)}")  # noqa: S310 - http or https
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        try:
            with _retried(
                lambda: self._open(request, timeout=min(READ_SECONDS, seconds))
            ) as answer:
                if offset and answer.status != HTTPStatus.PARTIAL_CONTENT:
                    raise RangesRefused
                size = int(answer.headers.get("Content-Length", -1))
                came = 0
                while piece := answer.read1(FETCH_BYTES):
                    came += len(piece)
                    yield piece
                    if time.monotonic() > ends:
                        raise RemoteFailed(f"{where} was not sent within {seconds:g} s")
        except HTTPError as error:
            error.close()
            if error.code == HTTPStatus.NOT_FOUND:
                raise NotThere(f"{where} not found") from None
            raise RemoteFailed(f"{where} {explain_status(error.code)}") from None
        except (OSError, HTTPException, ValueError):
            raise RemoteFailed(f"{where} cannot be reached, or does not answer in time") from None
        if came < size:
            raise RemoteFailed(f"{where} ended after {came} of {size} bytes")


def explain_status(status: int) -> str:
    """Return a clause that explains an error status."""
    if status in {401, 403}:
        return "refuses access: check the credentials in the environment"
    return f"answers {status}"


class _OwnRedirects(HTTPRedirectHandler):
    def __init__(self, address: str) -> None:
        self._address = address

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not _is_same_host(self._address, newurl):
            host = urlsplit(newurl).netloc.rpartition("@")[2]
            raise RemoteFailed(
                f"{req.full_url} redirects to another host, {quoted(host)}, which is not followed; "
                "if that host is right, use its address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_same_host(address: str, other: str) -> bool:
    """Return True if both addresses have the same host and port, or the other only adds TLS."""
    here, there = urlsplit(address), urlsplit(other)
    if here.hostname != there.hostname or there.scheme not in PORTS:
        return False
    ports = [one.port or PORTS[one.scheme] for one in (here, there)]
    adds_tls = (here.scheme, there.scheme) == ("http", "https") and ports == [80, 443]
    return adds_tls or (here.scheme == there.scheme and ports[0] == ports[1])


def _retried(ask: Callable[[], HTTPResponse]) -> HTTPResponse:
    ends = time.monotonic() + RETRYING_SECONDS
    for number in range(RETRIES):
        try:
            return ask()
        except HTTPError as error:
            if error.code < HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > ends:
                raise
            error.close()
        except OSError:
            if time.monotonic() > ends:
                raise
        time.sleep(0.1 * 2**number)
    return ask()
