"""Parsed heads, cached by the lines that matter.

A client sends the same head with each request, and a lookup takes a tenth of the time of parsing.
What differs from request to request are lines that nothing here reads: a trace, a cookie, the
address that a proxy forwards for. Such lines are learned when a head comes again with another
value in them, and are left out of what the next one is looked up by (decision 0042).
"""

from __future__ import annotations

from collections.abc import Sequence

from cohort.auth.authority import KEY_HEADERS
from cohort.http.calls import HEADER_LENGTH
from cohort.http.fast_path.heads import Head
from cohort.http.guards.heads import BLANKS
from cohort.http.guards.request_ids import REQUEST_ID_HEADER
from cohort.observability.request_ids import readable

MAX_HEADS = 1024
"""Cached heads at most: a few MiB, parsed form included. A full cache is cleared."""

MAX_HEAD_BYTES = 2048
"""The size of a cached head at most, without what varies; larger ones are parsed each time."""

MAX_SENT_BYTES = 16 * 1024
"""The size of a head that is looked up at most, as it was sent."""

MAX_LINES = 64
"""The lines of a cached head at most."""

MAX_VARYING = 16
"""Lines that are left out at most, each a search through the head: the last learned."""

MAX_COMPARED = 64
"""Heads that the next ones are compared with at most, to learn what varies."""

MATTER = frozenset(
    {
        *(name.encode() for name in KEY_HEADERS),
        HEADER_LENGTH.encode(),
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"keep-alive",
        b"origin",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""The headers by which a request is parsed, answered or refused: never left out.

Of all others only the request id and the one that a rollout goes by are read, both from each
request's own head.
"""


class HeadCache:
    """Parsed heads by their bytes without what varies, in `known`.

    Only heads whose caller may send them are cached, until the callers' keys change.

    varying: How the lines start that are left out, with the line break before them.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, Head] = {}
        self.varying: tuple[bytes, ...] = ()
        self._ids: frozenset[bytes] = frozenset()  # those of a request id
        self._compared: dict[bytes, dict[bytes, bytes]] = {}

    def reduce(self, raw: bytes) -> tuple[bytes, bytes]:
        """A head without what varies, and its request id, b"" where it has none.

        b"" for a head with characters in such a line that a parser may refuse.
        """
        request_id = b""
        for start in self.varying:
            at = raw.find(start)
            if at < 0:
                continue
            end = raw.find(b"\r\n", at + 2)
            value = raw[at + len(start) : end]
            if not value.decode("latin-1").isprintable():
                return b"", b""
            if start in self._ids:
                request_id = readable(value.strip(BLANKS))
                if not request_id:
                    return b"", b""
            raw = raw[:at] + raw[end:]
        return raw, request_id

    def remember(self, raw: bytes, head: Head, names: Sequence[bytes], declined: int = 0) -> None:
        """Cache a head, unless its bytes alone might not determine how a request is parsed.

        raw: Its bytes, with the empty line at the end.
        head: What they were parsed to.
        names: The names of its headers, in lower case.
        declined: The lines besides that asked for an upgrade, and were left out; default 0.
        """
        lines = len(names) + declined + 2  # with the request line and the empty one
        if not (
            len(raw) <= MAX_SENT_BYTES
            and lines <= MAX_LINES
            and raw.startswith(b"POST ")  # and no blank lines, which the parser skips
            and raw.count(b"\r\n") == raw.count(b"\n") == lines
            and b"transfer-encoding" not in names
            and names.count(REQUEST_ID_HEADER) <= 1
        ):
            return
        self._learn(raw)
        key, _ = self.reduce(raw)
        if not key or len(key) > MAX_HEAD_BYTES:
            return
        if len(self.known) >= MAX_HEADS:
            self.known.clear()
        if len(key) < len(raw):
            head = head.without([start[2:-1].lower() for start in self.varying])
        self.known[key] = head

    def _learn(self, raw: bytes) -> None:
        """Compare a head with the last one that was like it where that matters."""
        first, *lines = raw[:-4].split(b"\r\n")
        matter, others = [first], {}
        for line in lines:
            name = line[: line.find(b":")]
            lower = name.lower()
            if lower == REQUEST_ID_HEADER:
                self._add(name)
            elif lower in MATTER:
                matter.append(line)
            else:
                others[name] = line
        alike = b"\n".join(matter)
        before = self._compared.get(alike, {})
        for name, line in others.items():
            if before.get(name, line) != line:
                self._add(name)
        if len(self._compared) >= MAX_COMPARED:
            self._compared.clear()
        self._compared[alike] = others

    def _add(self, name: bytes) -> None:
        start = b"\r\n%b:" % name
        if start not in self.varying:
            self.varying = (*self.varying, start)[-MAX_VARYING:]
            self._ids = frozenset(
                one for one in self.varying if one[2:-1].lower() == REQUEST_ID_HEADER
            )
