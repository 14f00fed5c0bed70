"""TLS under HTTP: connections that are what their bytes are worth, on any event loop's transport.

The event loops have TLS of their own, uvloop's in `loop.create_server(ssl=…)`. It encrypts a
response whole, however long that takes, and hands it to a transport below, whose buffer it does
not count: a caller who reads nothing would hold any number of responses, and look idle. It also
waits for the other side's end of a connection, does the work of handshakes on the loop, and logs a
traceback for each that fails. Here responses are encrypted in pieces, as they are read, and
handshakes are bounded and done on a thread (docs/contributing/decisions/0013-tls.md).
"""

from cohort.http.tls.connection import TlsConnection
from cohort.http.tls.handshakes import Handshakes

__all__ = ["Handshakes", "TlsConnection"]
