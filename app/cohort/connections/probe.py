"""`python -m cohort.connections.probe`: the readiness probe of the container image.

It asks the addresses in the environment. It imports only the standard library, because the image
runs it every few seconds.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection

from cohort.connections.listeners import hosts_of
from cohort.system.platforms import platform_settings

SECONDS = 2.0
"""Timeout of the answer."""

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to ask at, not to listen on


def places_of(environment: Mapping[str, str]) -> Iterator[str | tuple[str, int]]:
    """Yield the addresses where the server may listen: a Unix socket, or hosts and a port."""
    if path := environment.get("COHORT_UDS"):
        yield path
        return
    given = platform_settings(environment).get("port")
    texts = environment.get("COHORT_PORT", ""), "" if given is None else given.value
    # Kubernetes may set the first to tcp://…
    port = next((int(text) for text in texts if text.isdecimal()), 8000)
    hosts = hosts_of(environment.get("COHORT_HOST") or "127.0.0.1")
    for host in dict.fromkeys([*(LOOPBACK.get(one, one) for one in hosts), *LOOPBACK.values()]):
        yield host, port


def is_ready(environment: Mapping[str, str]) -> bool:
    """Return True if the first server that listens is ready."""
    for place in places_of(environment):
        try:
            connection = _connect(place)
        except OSError:
            continue
        if environment.get("COHORT_TLS_CERT"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        asked = HTTPConnection("localhost")
        asked.sock = connection
        asked.request("GET", "/health/ready")
        return asked.getresponse().status == HTTPStatus.OK
    return False


def _connect(place: str | tuple[str, int]) -> socket.socket:
    if isinstance(place, tuple):
        return socket.create_connection(place, timeout=SECONDS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SECONDS)
    connection.connect(place)
    return connection


if __name__ == "__main__":
    raise SystemExit(not is_ready(os.environ))
