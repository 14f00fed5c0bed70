"""uvicorn's HTTP protocol, extended by the fast path."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httptools

from cohort.errors import CohortError, InvalidInput, TooLarge
from cohort.http.credentials import CERTIFICATE
from cohort.http.fast_path import reading
from cohort.http.fast_path.answering import AnsweringConnection
from cohort.http.fast_path.callers import begin, refuse_by_head, resume
from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.heads import NOWHERE, Head, SentHeaders, take_request_id
from cohort.http.fast_path.reading import PIECE_BYTES, SMALLEST_PART_BYTES
from cohort.http.fast_path.request_lines import RequestLines, not_http
from cohort.http.fast_path.shared import Hot
from cohort.http.guards.heads import BLANKS
from cohort.http.guards.limits import BEHIND, too_large

_PLAIN_VERSIONS = ("1.1", "1.0")


class HotProtocol(AnsweringConnection):
    """A connection. Requests to inference paths become a HotCycle; others are uvicorn's."""

    def __init__(self, hot: Hot, *args: Any, **kwargs: Any) -> None:
        super().__init__(hot, *args, **kwargs)
        self.url = b""
        self._lines = RequestLines()
        self._unread = b""  # the head at the start of a segment, until the parser has read it
        self._idle_bytes = 0  # in segments that neither began a request nor had a body
        self._large = False  # True if a segment may have held more than small headers
        self._length = 0  # the Content-Length, then the bytes still missing
        self._missing = 0  # bytes missing of a body whose head was in the cache
        self._parts = 0  # chunks of all chunked bodies so far
        self._line_ended = False  # True if more than the request line of a head has arrived
        self._fast_path = True  # True if the headers so far allow the fast path
        self._upgrade = False
        self._declined = 0  # headers that requested an upgrade and are left out

    # -- the connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all unanswered requests."""
        for cycle in self._open_cycles():
            if isinstance(cycle, HotCycle):
                cycle.leave()
            else:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self.cycle = self._front = None  # breaks a reference cycle that holds all requests

    def _open_cycles(self) -> list[Any]:
        """Return the unanswered requests."""
        read = {self._front, *(cycle for cycle, _ in self.pipeline), self.cycle} - {None}
        return [cycle for cycle in read if not cycle.response_complete]

    def data_received(self, data: bytes) -> None:
        """Look up a cached head and count its body. Parse everything else."""
        if self._broken:
            return
        self._since = self.loop.time()
        size = len(data)
        if self._between:
            end = data.find(b"\r\n\r\n") + 4
            raw = data[:end]
            heads = self.heads
            head, key, request_id = heads.known.get(raw), raw, b""
            if head is None and heads.varying:
                key, request_id = heads.reduce(raw)
                head = heads.known.get(key)
            if head is not None and (missing := head.length + end - size) >= 0:
                caller = head.caller
                cycle = HotCycle(self, head) if caller is None else resume(self, caller, head)
                if head.shared or key is not raw:
                    cycle.raw, cycle.request_id = raw, request_id
                self._queue(cycle)
                if not missing:
                    self._broken = not head.keep_alive
                    cycle.arrive(data[end:])
                    if self.pipeline:
                        self._read_ahead(size)
                    return
                self._between, self._missing = False, missing
                if cycle.refusal is not None:
                    refuse_by_head(cycle, head.headers.pairs)
                self._take(cycle, data[end:], size)
                return
            self._unread = raw
        elif self._missing:
            self._fill(data)
            return
        if self._between or self._in_headers:
            data = reading.without_blanks(data)
        self._parse_in_pieces(data, len(self._unread) or PIECE_BYTES)
        self.flow.give_way(size, self.loop)
        if self.pipeline:
            self._read_ahead(size)

    def _fill(self, data: bytes) -> None:
        """Add missing bytes to a body whose head was in the cache, and read on."""
        cycle, missing = self.cycle, self._missing
        part = data if len(data) <= missing else data[:missing]
        self._missing = missing - len(part)
        self._take(cycle, part, len(part))
        if not self._missing and not self._broken:
            self._between, self._broken = True, not cycle.head.keep_alive
            cycle.read()
        if len(part) < len(data):
            self.data_received(data[missing:])

    def _take(self, cycle: HotCycle, part: bytes, size: int) -> None:
        """Pass a part of the body to the request. `size` includes the head before it."""
        if part:
            self._received += len(part)
            cycle.take(part)
        self.flow.give_way(size, self.loop)
        if self.pipeline:
            self._read_ahead(size)

    def _parse_in_pieces(self, data: bytes, first: int) -> None:
        """Parse the received bytes. Many small body parts wait for the connection's next turn.

        The `first` piece may be a head, which determines the length of the body.
        """
        at, length = 0, first
        while (left := len(data) - at) > PIECE_BYTES and self._length < left:
            parts = self._parts
            self._parse(data[at : at + length], length)
            if self._broken:
                return
            at += length
            if (self._parts - parts) * SMALLEST_PART_BYTES > length:
                self.flow.wait(data[at:])
                self.hot.turns.wait(self, self.loop)
                return
            length = PIECE_BYTES if at == first else 2 * length
        self._parse(data[at:] if at else data, left)

    def take_turn(self) -> None:
        """Parse more of the last segment, then resume reading."""
        rest = self.flow.go_on()
        if not self._broken and not self.transport.is_closing():
            self._parse_in_pieces(rest, PIECE_BYTES)
        self.flow.resume_reading()

    def _parse(self, data: bytes, size: int) -> None:
        self._idle_bytes += size
        self._large |= size > reading.LARGE_SEGMENT_BYTES
        try:
            line_open = self._in_headers and not self.headers and not self._line_ended
            for target, piece in self._lines.cut(data, self._length, line_open=line_open):
                if target and target == self.url and self._in_headers and not self.headers:
                    raise not_http()
                self._feed(piece)
            if self._in_headers and not self.headers and self.url:
                # The parser reports a header when the next one begins, so the first may be
                # incomplete.
                self._line_ended |= b"\n" in data[max(data.rfind(self.url), 0) :]
        except (httptools.HttpParserError, InvalidInput) as error:
            if not self._broken:
                self.refuse(reading.to_cohort_error(error))
        if self._idle_bytes > reading.MAX_HEADER_BYTES and not self._broken:
            self.refuse(TooLarge(reading.HEADERS_TOO_LARGE))  # includes trailers and blank lines

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = memoryview(data)[upgrade.args[0] :]
        else:
            return
        self._decline(rest)  # outside the handler, so that later errors do not have it as context

    def _decline(self, rest: memoryview) -> None:
        """Read a request for an upgrade as one without it.

        httptools passes the bytes after such headers to the other protocol and reports no body. The
        first POST of Java's HttpClient would lose its body.
        https://www.rfc-editor.org/rfc/rfc9110#section-7.8-15
        """
        while self._upgrade and not self._broken:
            self._upgrade = False
            self._declined = [name for name, _ in self.headers].count(b"upgrade")
            head = reading.without_upgrade(self.parser, self.url, self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            try:
                self.parser.feed_data(head)
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                if not self._broken:
                    self.refuse(reading.to_cohort_error(error))

    # -- parser callbacks

    def on_message_begin(self) -> None:
        """Prepare for a new request."""
        if self._broken:
            raise InvalidInput("the previous request closed this connection")
        self._between = False
        self._in_headers = self._fast_path = True
        self._line_ended = False
        self._headers_since = self._since
        self._idle_bytes = self._length = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header, and check if it allows the fast path."""
        name, value = name.lower(), value.strip(BLANKS)
        if name in self.hot.relevant_headers:
            if name == b"content-length":
                self._length = int(value) if self._in_headers else 0  # ignored in trailers
            else:
                self._fast_path = False
                self.expect_100_continue |= name == b"expect" and value.lower() == b"100-continue"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Make a HotCycle, or leave the request to the ASGI application. Raises CohortError."""
        parser, headers = self.parser, self.headers
        if self._large or self._idle_bytes > reading.MAX_HEADER_BYTES - reading.LARGE_SEGMENT_BYTES:
            reading.check_size(self.url, headers)
        method, version = parser.get_method(), parser.get_http_version()
        self.hot.rules.check(version, self.url, headers)
        route = None
        if self._fast_path:
            route = self.hot.route(self.url)
        elif parser.should_upgrade() and method != b"CONNECT":
            self._upgrade = True
            return
        unread, self._unread = self._unread, b""
        self._in_headers = False
        declined, self._declined = self._declined, 0
        if route is None or method != b"POST" or version not in _PLAIN_VERSIONS:
            self._leave_to_asgi()
        else:
            names = [name for name, _ in headers]
            request_id = take_request_id(headers)
            kept = parser.should_keep_alive()
            cycle = begin(self, Head(
                route, self.url, SentHeaders(headers), self._length,
                plane=self.hot.plane, keep_alive=kept, states_keep_alive=kept and version == "1.0",
            ))  # fmt: skip
            if request_id:
                cycle.request_id = request_id
            with suppress(CohortError):  # raised again once the body is complete
                cycle.head.prepare()
            self._queue(cycle)
            if cycle.refusal is not None:
                refuse_by_head(cycle, headers)
            elif self._length > self.hot.max_body:
                cycle.break_off(too_large(self.hot.max_body))
            elif unread:
                self.heads.remember(unread, cycle.head, names, declined)
        self.headers = []  # for the trailers, which are ignored

    def _leave_to_asgi(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope
        self.scope[BEHIND] = self.pipeline  # type: ignore[literal-required]
        self.scope[CERTIFICATE] = self.certificate  # type: ignore[literal-required]
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()
        self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the request."""
        self._idle_bytes = 0
        self._parts += self._length <= 0
        self._received += len(body)
        self._length -= len(body)
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            cycle.take(body)
            return
        if isinstance(cycle.body, bytes) and cycle.body:
            cycle.body = bytearray(cycle.body)  # bytes would be copied for each chunk
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Complete the body of the request."""
        if self._upgrade:
            return
        self._between = self.parser.should_keep_alive()
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            cycle.read()
        else:
            super().on_message_complete()

    def refuse(self, error: CohortError) -> None:
        """Refuse a malformed request after all earlier responses, and close the connection."""
        self._broken = True
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            if isinstance(cycle, HotCycle):
                cycle.break_off(error)
                return
            if cycle is not self._front:
                self.pipeline.popleft()
            elif cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True  # otherwise uvicorn's cycle would wait for the body
            cycle.message_event.set()
            self.cycle = None if cycle is self._front else cycle
        refusal = HotCycle(self, Head(NOWHERE, self.url, SentHeaders([]), 0, plane=self.hot.plane))
        self._queue(refusal)
        refusal.break_off(error)
