"""The responses of a connection, in the order of its requests."""

from __future__ import annotations

from collections import deque
from typing import Any

from cohort.http.calls import JSON, Encoded, FixedHeaders
from cohort.http.compression import MIN_COMPRESSED
from cohort.http.fast_path.close_delimited import close_delimited
from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.idle import WatchedConnection
from cohort.http.fast_path.shared import MAX_READ_AHEAD_BYTES, Hot
from cohort.http.guards.limits import REFUSED_LINGER_SECONDS
from cohort.serving import Group

CLOSES, KEEPS = b"connection: close\r\n", b"connection: keep-alive\r\n"


class AnsweringConnection(WatchedConnection):
    """A connection that answers its requests in order: one at the front, the others queued."""

    pipeline: deque[tuple[Any, Any]]  # requests queued behind the front, the next one last

    def __init__(self, hot: Hot, *args: Any, **kwargs: Any) -> None:
        super().__init__(hot, *args, **kwargs)
        self._broken = False  # True if all further input is ignored
        self._ended = False  # True if the last response was written

    def _read_ahead(self, size: int) -> None:
        self.flow.ahead += size
        if self.flow.ahead > MAX_READ_AHEAD_BYTES:
            self.flow.pause_reading()

    def _queue(self, cycle: HotCycle) -> None:
        existing = self.cycle
        self.cycle = cycle
        if existing is None or existing.response_complete:
            cycle.at_front = True
            self._front = cycle
        else:
            self.pipeline.appendleft((cycle, None))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the request at the front. uvicorn also calls this for its own requests."""
        self._front = cycle
        if isinstance(cycle, HotCycle):
            cycle.reach_front()
        elif cycle.scope["http_version"] == "1.0":
            super()._start_asgi_task(cycle, close_delimited(app, cycle))
        else:
            super()._start_asgi_task(cycle, app)

    def try_send_success(
        self, cycle: HotCycle, body: bytes, headers: FixedHeaders, group: Group
    ) -> bool:
        """Write a successful response with a cached head, or return False if only `send` can."""
        del group  # used by the access log
        if self.pipeline or self._ended:
            return False
        if len(body) >= MIN_COMPRESSED and cycle.head.coding is not None:
            return False
        hot, transport = self.hot, self.transport
        if hot.lifecycle.draining or transport.is_closing():
            return False
        cycle.response_complete = True
        hot.answered += 1
        state = self.server_state
        state.total_requests += 1
        kept, lines = cycle.keep_alive, headers.lines
        if not kept:
            lines += CLOSES
        elif cycle.head.states_keep_alive:
            lines += KEEPS
        head = hot.success_head(state.default_headers, lines, len(body))
        if request_id := cycle.request_id:
            head = b"%bx-request-id: %b\r\n\r\n" % (head[:-2], request_id)
        transport.write(head + body)
        self._front = None
        if not kept:
            self._end(linger=False)
        elif self.flow.read_paused:
            self._read_on()
        return True

    def trace_id_of(self, cycle: HotCycle) -> str:
        """Return the trace id of a request; "" without one."""
        del cycle  # nothing is traced here
        return ""

    def send(self, cycle: HotCycle, status: int, encoded: Encoded) -> None:
        """Write a response and start the next request."""
        hot, transport = self.hot, self.transport
        if self._ended or transport.is_closing():
            return
        hot.answered += 1
        body = encoded.body
        defaults = self.server_state.default_headers
        closing = not cycle.keep_alive or (not self.pipeline and hot.lifecycle.draining)
        request_id = cycle.request_id
        kept = cycle.head.states_keep_alive and not closing
        usual = encoded.headers is JSON and not closing and not kept and not request_id
        if status == 200 and usual:
            head = hot.success_head(defaults, JSON.lines, len(body))
        else:
            headers = {**encoded.headers, "content-length": str(len(body))}
            if request_id:
                headers["x-request-id"] = request_id.decode()
            if closing:
                headers["connection"] = "close"
            elif kept:
                headers["connection"] = "keep-alive"
            head = hot.head(status, headers, defaults)
        if len(body) < 65536:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if closing:
            self._end(linger=cycle.more_body)
        self.on_response_complete()

    def _end(self, *, linger: bool) -> None:
        """Close the connection. With `linger`, first give the client time to read the response.

        If bytes arrive after the close, the kernel answers with a reset. A client that is still
        sending then never reads its response: https://www.rfc-editor.org/rfc/rfc9112#section-9.6
        """
        self._broken = self._ended = True
        if linger:
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(REFUSED_LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Start the next request. The idle sweep replaces uvicorn's timer per response."""
        self.server_state.total_requests += 1
        self._front = None
        if self._ended or self.transport.is_closing():
            return
        self._since = self.loop.time()
        if self.pipeline:
            self.loop.call_soon(self.read_next)  # a direct call would overflow the stack at 1,000
        elif self.flow.read_paused:
            self._read_on()

    def read_next(self) -> None:
        if (
            self._front is None
            and self.pipeline
            and not self.flow.write_paused
            and not self._ended
            and not self.transport.is_closing()
        ):
            self._start_asgi_task(*self.pipeline.pop())
            if not self.pipeline:
                self._read_on()

    def _read_on(self) -> None:
        self.flow.ahead = 0
        self.flow.resume_reading()
