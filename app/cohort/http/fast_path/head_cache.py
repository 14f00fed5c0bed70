"""A cache of parsed heads, keyed by the lines that affect a request.

A client sends the same head with each request, and a lookup takes a tenth of the time of parsing.
The lines that differ are not read here: a trace, a cookie, the address that a proxy forwards. They
are learned when a head is repeated with another value in them, and left out of the key (decision
0042).
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
"""Maximum number of cached heads; a few MiB with their parsed form. A full cache is cleared."""

MAX_HEAD_BYTES = 2048
"""Maximum size of a cached head without its varying lines. Larger heads are parsed each time."""

MAX_SENT_BYTES = 16 * 1024
"""Maximum size of a received head that is looked up."""

MAX_LINES = 64
"""Maximum number of lines of a cached head."""

MAX_VARYING = 16
"""Maximum number of varying lines. Each costs a search through the head; the oldest are dropped."""

MAX_COMPARED = 64
"""Maximum number of heads that are kept for comparison, to learn the varying lines."""

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
"""Headers that affect how a request is parsed, answered or refused. They always stay in the key.

Only two other headers are read: the request id and the rollout's sticky header. Both are read from
each request's own head.
"""


class HeadCache:
    """Parsed heads in `known`, keyed by their bytes without varying lines.

    It contains only heads of authorized callers, and is cleared when keys change.

    varying: The starts of the lines left out, each with its preceding line break.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, Head] = {}
        self.varying: tuple[bytes, ...] = ()
        self._ids: frozenset[bytes] = frozenset()  # the starts of request id lines
        self._compared: dict[bytes, dict[bytes, bytes]] = {}

    def reduce(self, raw: bytes) -> tuple[bytes, bytes]:
        """Return a head without its varying lines, and its request id, or b"" without one.

        The head is b"" if a varying line has characters that a parser may refuse.
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
        """Cache a head, unless parsing depends on more than its bytes.

        raw: Its bytes, with the empty line at the end.
        head: The parsed head.
        names: The names of its headers, in lower case.
        declined: Additional lines that requested an upgrade and were left out. Default: 0.
        """
        lines = len(names) + declined + 2  # with the request line and the empty line
        if not (
            len(raw) <= MAX_SENT_BYTES
            and lines <= MAX_LINES
            and raw.startswith(b"POST ")  # excludes leading blank lines, which the parser skips
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
        """Compare a head with the last one whose relevant lines were equal."""
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
