"""TLS transport with bounded buffering, on any event loop.

Event loops have their own TLS, such as uvloop's `loop.create_server(ssl=…)`. It encrypts a whole
response at once and passes it to a lower transport, whose buffer it does not count. A client that
reads nothing could then hold any number of responses and look idle. It also waits for the client's
end of a connection, does handshakes on the loop, and logs a traceback for each failure. Here
responses are encrypted in pieces as they are read, and handshakes are bounded and run on a thread
(docs/contributing/decisions/0013-tls.md).
"""

from cohort.http.tls.connection import TlsConnection
from cohort.http.tls.handshakes import Handshakes

__all__ = ["Handshakes", "TlsConnection"]
