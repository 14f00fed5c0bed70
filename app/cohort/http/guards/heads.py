"""What the head of every HTTP request must be, whatever its route and whoever answers it.

A proxy in front may read an ambiguous head differently from the server, and then forwards what it
was set up to keep away: https://www.rfc-editor.org/rfc/rfc9112#section-11.2. Such heads are
refused here, before a route is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cohort.errors import CohortError, Forbidden, InvalidInput, quoted
from cohort.http.errors import log_http_refusal, response_to
from cohort.http.guards.limits import no_more_input
from cohort.http.guards.log_lines import ADMIN_PATHS
from cohort.http.guards.request_ids import id_of_refused
from cohort.http.route_path import root_of, route_path

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
"""Stands for all origins."""

BLANKS = b" \t"
"""They may stand around a value, and are no part of it.
https://www.rfc-editor.org/rfc/rfc9110#section-5.5
"""

VERSIONS = frozenset({"1.0", "1.1", "2", "3"})
"""As ASGI names them; "2.0" is what a client writes into a request line of HTTP/1."""

ONCE = (
    b"content-encoding",
    b"content-type",
    b"host",
    b"inference-header-content-length",
    b"transfer-encoding",
)
"""Headers that say one thing: of two, a proxy may go by the other."""

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
"""Answered for any host: balancers and orchestrators ask by address."""

GUARDED = (*ADMIN_PATHS, "/metrics")
"""Where a path means only what it says."""

_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
_NO_PATH = re.compile(rb"[^/?]*://[^/?#]*([?#].*)?", re.DOTALL)
_PORT = re.compile(r":[0-9]*$")


class HeadRules:
    """The rules for heads.

    hosts: The hosts that this server answers for, in lower case, each with its port or without, for
        any port; default none: any host.
    origins: The origins whose pages may call it whatever its hosts are; ANY: all.
    """

    def __init__(self, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        self._hosts = frozenset(hosts)
        self._origins = frozenset(one.encode() for one in origins)

    def check(self, version: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raise InvalidInput for an ambiguous head, Forbidden for a host that is not ours.

        version: The version of HTTP.
        target: The request target as it was sent, or its path.
        headers: Names, in lower case, and values.
        """
        if version not in VERSIONS:
            raise InvalidInput(f"this server speaks HTTP/1.1, not HTTP/{version}")
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
                raise InvalidInput("the header host is missing")
        elif not _HOST.fullmatch(host):
            raise InvalidInput(f"the header host is not a host, got {_shown(host)}")
        if b"transfer-encoding" in names:
            _check_coding(version, headers)
        if self._hosts:
            self._check_host(target, host or b"", headers)

    def _check_host(
        self, target: bytes, host: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Raise Forbidden where a page or a name of somebody else leads here.

        A browser says in Host by which name it found the server, and in Origin whose page asks.
        """
        path = target.partition(b"?")[0]
        if path in HEALTH_PATHS:
            return
        if not self._is_ours(host):
            raise Forbidden(f"this server is not {_shown(host)}; COHORT_HOSTS names its hosts")
        if b"://" in path and not self._is_ours(_authority(path)):
            raise Forbidden("the host of the request target is not in COHORT_HOSTS")
        for name, value in headers:
            if name == b"origin" and not self._may_call(value):
                raise Forbidden(f"pages of {_shown(value)} may not call this server")

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
    """The host and port of a URL; b"" where it has none, as the origin `null`."""
    return url.partition(b"://")[2].partition(b"/")[0]


def _shown(value: bytes) -> str:
    return quoted(value.decode("latin-1"))


_NAMED = re.compile(r"(?:/v[12])?/models/")
_UNRESERVED = re.compile(r"%(4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE]|3[0-9]|2[DE])", re.IGNORECASE)


def _without_escapes(scope: Scope, path: str) -> str:
    """A path whose unreserved characters are written plainly, where it names a model.

    https://www.rfc-editor.org/rfc/rfc3986#section-6.2.2.2
    """
    if not _NAMED.match(path.removeprefix(root_of(scope))):
        return path
    plain = _UNRESERVED.sub(lambda one: chr(int(one[1], 16)), path)
    return path if "/." in plain else plain


class BareValues:
    """Pure ASGI: take the blanks off that a parser leaves behind the values of headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [(name, value.strip(BLANKS)) for name, value in scope["headers"]]
        await self.app(scope, receive, send)


class CheckedHeads:
    """Pure ASGI: refuse heads against `rules`, and take paths as they were sent.

    What is percent-encoded stays so: no route, model or version needs it, and a proxy that guards
    `/admin` does not know `/%61dmin`. But under `/models/` characters that need no escape are read
    without one: some clients escape more than they need to. A slash at the end is left out, as in
    `/v2/`, except where a proxy may guard the path without it.
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
            # Where the body ends is in doubt, too: only closing the connection is sure.
            log_http_refusal(error, scope["path"], id_of_refused(scope))
            await response_to(error, {"connection": "close"})(scope, no_more_input, send)
            return
        await self.app(scope, receive, send)
