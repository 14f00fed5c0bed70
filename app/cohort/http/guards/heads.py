"""Rules for the head of every HTTP request, on any route.

A proxy may read an ambiguous head differently, and forward requests that it should block. Such
heads are refused before a route is looked up.
https://www.rfc-editor.org/rfc/rfc9112#section-11.2
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cohort.errors import CohortError, Forbidden, InvalidInput, quoted
from cohort.http.guards.limits import refuse_and_close
from cohort.http.guards.log_lines import ADMIN_PATHS
from cohort.http.route_path import root_of, route_path

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
"""Allows all origins."""

BLANKS = b" \t"
"""Blanks around a value. They are not part of it.

https://www.rfc-editor.org/rfc/rfc9110#section-5.5
"""

VERSIONS = frozenset({"1.0", "1.1", "2", "3"})
"""HTTP versions as ASGI names them. "2.0" is only found in a request line of HTTP/1."""

ONCE = (
    b"content-encoding",
    b"content-type",
    b"host",
    b"inference-header-content-length",
    b"transfer-encoding",
)
"""Headers that may be sent only once. If there are two, a proxy may use the other one."""

HEALTH_PATHS = frozenset(
    {
        b"/health",
        b"/health/live",
        b"/health/ready",
        b"/ping",
        b"/v2/health/live",
        b"/v2/health/ready",
    }
)
"""Paths that are answered for any host, because load balancers and orchestrators use addresses."""

GUARDED = (*ADMIN_PATHS, "/metrics")
"""Path prefixes that are matched exactly: a trailing slash is not ignored."""

_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
_NO_PATH = re.compile(rb"[^/?]*://[^/?#]*([?#].*)?", re.DOTALL)
_PORT = re.compile(r":[0-9]*$")


class HeadRules:
    """The rules for heads.

    hosts: The hosts of this server, in lower case, with a port, or without one for any port.
        Default: any host.
    origins: The origins whose pages may call this server, whatever its hosts are. ANY means all.
    """

    def __init__(self, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        self._hosts = frozenset(hosts)
        self._origins = frozenset(one.encode() for one in origins)

    def check(self, version: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raise InvalidInput for an ambiguous head, or Forbidden for an unknown host or origin.

        version: The HTTP version.
        target: The request target as it was sent, or its path.
        headers: Names, in lower case, and values.
        """
        if version not in VERSIONS:
            raise InvalidInput(f"this server supports HTTP/1.1, not HTTP/{version}")
        if target[:1] != b"/" and _NO_PATH.fullmatch(target):
            raise InvalidInput(f"the request target has no path, got {_shown(target)}")
        names = [name for name, _ in headers]
        if len(set(names)) < len(names):
            for name in ONCE:
                if names.count(name) > 1:
                    raise InvalidInput(f"the header {name.decode()} was sent more than once")
        host = next((value for name, value in headers if name == b"host"), None)
        if host is None:
            if version == "1.1":
                raise InvalidInput("the host header is missing")
        elif not _HOST.fullmatch(host):
            raise InvalidInput(f"the host header is not a valid host, got {_shown(host)}")
        if b"transfer-encoding" in names:
            _check_coding(version, headers)
        if self._hosts:
            self._check_host(target, host or b"", headers)

    def _check_host(
        self, target: bytes, host: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Raise Forbidden if the request is for another host, or from a page of another origin.

        A browser sends the name of the server in Host, and the origin of the page in Origin.
        """
        path = target.partition(b"?")[0]
        if path in HEALTH_PATHS:
            return
        if not self._is_ours(host):
            raise Forbidden(f"host {_shown(host)} is not in COHORT_HOSTS")
        if b"://" in path and not self._is_ours(_authority(path)):
            raise Forbidden("the host in the request target is not in COHORT_HOSTS")
        for name, value in headers:
            if name == b"origin" and not self._may_call(value):
                raise Forbidden(
                    f"pages of {_shown(value)} may not call this server: the origin is not in "
                    "COHORT_CORS_ORIGINS"
                )

    def _may_call(self, origin: bytes) -> bool:
        if origin in self._origins or ANY.encode() in self._origins:
            return True
        return self._is_ours(_authority(origin))

    def _is_ours(self, host: bytes) -> bool:
        name = host.decode("latin-1").lower()
        return name in self._hosts or _PORT.sub("", name) in self._hosts


def _check_coding(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    coding = next(value for name, value in headers if name == b"transfer-encoding")
    if version == "1.0":
        raise InvalidInput("HTTP/1.0 has no transfer-encoding")
    if coding.lower() != b"chunked":
        raise InvalidInput(f"transfer-encoding must be chunked, got {_shown(coding)}")


def _authority(url: bytes) -> bytes:
    """Return the host and port of a URL, or b"" without one, as in the origin `null`."""
    return url.partition(b"://")[2].partition(b"/")[0]


def _shown(value: bytes) -> str:
    return quoted(value.decode("latin-1"))


_NAMED = re.compile(r"(?:/v[12])?/models/")
_UNRESERVED = re.compile(r"%(4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE]|3[0-9]|2[DE])", re.IGNORECASE)


def _without_escapes(scope: Scope, path: str) -> str:
    """Decode unreserved characters in a path that names a model.

    https://www.rfc-editor.org/rfc/rfc3986#section-6.2.2.2
    """
    if not _NAMED.match(path.removeprefix(root_of(scope))):
        return path
    plain = _UNRESERVED.sub(lambda one: chr(int(one[1], 16)), path)
    return path if "/." in plain else plain


class BareValues:
    """Pure ASGI: strip the blanks that a parser leaves around header values."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [(name, value.strip(BLANKS)) for name, value in scope["headers"]]
        await self.app(scope, receive, send)


class CheckedHeads:
    """Pure ASGI: refuse heads that break `rules`, and use paths as they were sent.

    Percent-encoded characters stay encoded. No route, model or version needs them, and a proxy that
    guards `/admin` does not recognize `/%61dmin`. Under `/models/`, characters that need no escape
    are decoded, because some clients escape too many. A trailing slash is dropped, as in `/v2/`,
    except on paths that a proxy may guard.
    """

    def __init__(self, app: ASGIApp, rules: HeadRules) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if b"%" in path:
            scope["path"] = _without_escapes(scope, path.decode("latin-1"))
        plain = route_path(scope)
        if plain.endswith("/") and plain.strip("/") and not plain.startswith(GUARDED):
            scope["path"] = scope["path"][:-1]
        target = path.removeprefix(root_of(scope).encode())
        try:
            self.rules.check(scope["http_version"], target, scope["headers"])
        except CohortError as error:
            # The end of the body is uncertain. Only closing the connection is safe.
            await refuse_and_close(error, scope, receive, send)
            return
        await self.app(scope, receive, send)
