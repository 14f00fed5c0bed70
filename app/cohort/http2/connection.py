"""One connection: frames to streams and back, and the limits of a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import uniform

from cohort.connections.address_counts import address_of
from cohort.connections.body_pace import Pace
from cohort.connections.memory import SMALL_BYTES, MemoryBudget
from cohort.connections.turns import Turns
from cohort.http2.addresses import written_address
from cohort.http2.announced import CONNECTION_WINDOW, GREETING, STREAMS_PER_CONNECTION
from cohort.http2.frames import (
    ACK,
    END_STREAM,
    GOAWAY,
    MAX_WINDOW,
    PING,
    PRIORITY_FRAME,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
    frame,
    goaway,
    read_increment,
    rst_stream,
    window_update,
)
from cohort.http2.header_blocks import HeaderBlocks
from cohort.http2.heads import CallHeads, StreamHead, refusal_of
from cohort.http2.incoming import FrameReader
from cohort.http2.left_open import LeftOpen
from cohort.http2.outgoing import UNSENT_BYTES, Outgoing
from cohort.http2.send_queue import Part
from cohort.http2.streams import Stream
from cohort.http2.useless_frames import (
    BLOCK_BYTES_LIKE_ONE,
    HELD_BYTES_LIKE_ONE,
    SETTINGS_LIKE,
    SMALL_DATA,
    UselessFrames,
    UselessOfAddresses,
)

HANDSHAKE_SECONDS = 20.0
"""Seconds within which a connection must begin to use HTTP/2."""

PING_SECONDS, PING_TIMEOUT_SECONDS = 60.0, 20.0
"""Seconds of silence after which a connection is probed with PING, and its timeout."""

_LARGE_SEGMENT = 1 << 16
"""Size of a segment after which others go first. libuv would read 32 of 250 KB in a row."""

TOO_OLD = "this connection has reached its maximum age; call again on another one"

DRAIN_PING = b"draining"
OUR_PING = b"are you?"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """State and callbacks shared by all connections.

    memory: The budget for messages that arrive or wait to be sent.
    heads: The cache of heads of calls.
    begin: Begins a call: sets the handler of its stream, or ends the stream.
    ended: Called with the stream of each call that has ended, handled or not.
    opened: Returns True if another connection is allowed. `closed` is called in any case.
    closed: Called with each connection that has closed.
    idle_seconds: Seconds that a connection may be without calls.
    turns: Schedules connections whose frames take long to read.
    useless: Counts useless frames by address. The code that checks connections each second also
        resets it. Default: a separate count.
    max_age: Seconds after which a connection accepts no more calls, within 10 %. Default: never.
    grace: Seconds after that until streams of requests also end. Default: never.
    """

    memory: MemoryBudget
    heads: CallHeads
    begin: Callable[[Stream], None]
    ended: Callable[[Stream], None]
    opened: Callable[[Http2Connection], bool]
    closed: Callable[[Http2Connection], None]
    idle_seconds: float
    turns: Turns
    useless: UselessOfAddresses = field(default_factory=UselessOfAddresses)
    max_age: float = inf
    grace: float = inf


class Http2Connection(asyncio.Protocol):
    """A connection, as the event loop's protocol.

    peer: The other side's address in gRPC's form.
    address: The key of the connection in the count of each address.
    certificate: Its client certificate in DER, or None.
    memory: The budget for the data of its streams.
    out: Writes to it.
    streams: The open streams by number.
    """

    transport: asyncio.Transport

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.peer = ""
        self.address: str | bytes = ""
        self.memory = limits.memory
        self.certificate: bytes | None = None
        self.streams: dict[int, Stream] = {}
        self._loop = asyncio.get_running_loop()
        self.out = Outgoing(self._loop)
        self._frames = FrameReader(self)
        self._blocks = HeaderBlocks(limits.heads)
        self._last = 0  # the last stream that the peer has begun
        self._last_taken = MAX_WINDOW  # the last stream that is accepted
        self._left = LeftOpen()
        self._draining = False  # True if the peer was sent DRAIN_PING
        self._window = CONNECTION_WINDOW
        self._closing = False
        self._going_on = False  # True if the remaining bytes are read in the next turn
        self._useless = UselessFrames(self.out)
        self._since = self._began = self._heard = self._loop.time()
        # Connections that began together, after a restart, must not all return together.
        self._accepts_until = self._began + limits.max_age * uniform(0.9, 1.1)  # noqa: S311 - no secret
        self._pinged = inf  # time of an unanswered PING
        self._reading = Pace()
        self._held = limits.memory.hold()  # bytes read and not processed, or written and not sent

    # -- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the greeting, if there is room for another connection."""
        self.transport = self.out.transport = transport
        name = transport.get_extra_info("peername")
        self.peer, self.address = written_address(name), address_of(name)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            transport.set_write_buffer_limits(UNSENT_BYTES)
        else:  # TLS transports have their own limits
            self.certificate = tls.getpeercert(binary_form=True)
        if not self.limits.opened(self):
            self._closing = True
            transport.abort()
            return
        self.out.write(GREETING)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._end_streams()
        self._frames.close()
        self._held.set(0)
        self.limits.closed(self)

    def pause_writing(self) -> None:
        """Stop reading because the kernel's buffer is full."""
        self.out.paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """Resume writing and reading."""
        self.out.paused = False
        self.out.go_on()
        self._resume_reading()

    def eof_received(self) -> bool:
        """Return False to close the connection, because the peer sends nothing more."""
        return False

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self._closing:
            return
        self._heard = self._loop.time()
        self._pinged = inf
        self._frames.add(data)
        if not self._going_on:
            self._read(give_way=len(data) >= _LARGE_SEGMENT)

    def _read(self, *, give_way: bool = False) -> None:
        try:
            done = self._frames.read()
        except ConnectionFault as fault:
            self.fail(fault.code, fault.reason)
            return
        if done and not give_way:
            return
        self._going_on = True
        self._pause_reading()
        if done:
            self._loop.call_soon(self.take_turn)
        else:
            self.limits.turns.wait(self, self._loop)

    def take_turn(self) -> None:
        """Process some or all of the received bytes."""
        self._going_on = False
        if not self._closing:
            self._read()
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._closing and not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not (self._going_on or self.out.paused or self._closing or self.transport.is_closing()):
            self.transport.resume_reading()

    # -- data

    def begin_data(self, number: int, length: int) -> None:
        """Count a frame of data for flow control. The connection's window is refilled at once."""
        if not number % 2 or number > self._last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that was not opened")
        self._window -= length
        if self._window < CONNECTION_WINDOW // 2:  # never exceeded, because a frame is much smaller
            self.out.write(window_update(0, CONNECTION_WINDOW - self._window))
            self._window = CONNECTION_WINDOW
        stream = self.streams.get(number)  # None if it has ended, which its client may not know yet
        if stream is not None:
            stream.begin_data(length)
        else:
            if length < SMALL_DATA:
                self.count_useless()
            self._check_left(number)

    def take_data(self, number: int, part: Part, *, end: bool) -> None:
        """Pass a part of a message to its stream."""
        stream = self.streams.get(number)
        if not part and not (end and stream is not None):
            self.count_useless()
        if stream is not None:
            stream.take_data(part, end=end)
        elif end:
            self._left.end(number)

    # -- HEADERS

    def take_block(self, number: int, flags: int, block: bytes) -> None:
        """Begin or end a stream."""
        if not number % 2:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "client streams must have odd numbers")
        head = self._blocks.decode(block)
        end = bool(flags & END_STREAM)
        if number <= self._last:
            self._trailers(number, head, end=end)
            return
        if number != self._last + 2 and number > 1:
            self._left.skip(self._last, number)
        self._last = number
        if number > self._last_taken:
            self.count_useless()
            return  # the peer was notified, and repeats the call elsewhere
        if len(self.streams) >= STREAMS_PER_CONNECTION:
            self.count_useless()
            self.out.write(rst_stream(number, ErrorCode.REFUSED_STREAM))
            if not end:
                self._left.add(number)
            return
        if head.malformed or head.call.refusal:
            self.count_useless(1 + len(block) // BLOCK_BYTES_LIKE_ONE)
            self.out.write(refusal_of(number, head, ended=end))
            if not end:
                self._left.add(number)
            return
        stream = self.streams[number] = Stream(self, number, head, ended=end)
        self.limits.begin(stream)
        if end:
            stream.end()  # without a message

    def _trailers(self, number: int, head: StreamHead, *, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._check_left(number)
            self.count_useless()
            if end:
                self._left.end(number)
        elif stream.ended:
            stream.reset(ErrorCode.STREAM_CLOSED)
        elif not end or head.no_trailers:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
        else:
            stream.end()

    def _check_left(self, number: int) -> None:
        """Raise ConnectionFault if the peer sends frames of an unknown stream."""
        if number in self._left or number > self._last_taken:
            return
        if self._left.was_skipped(number):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "streams must begin in increasing order"
            )
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, "frame on a closed stream")

    # -- other frames

    def take_other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Process a frame that is neither DATA nor HEADERS."""
        if kind == WINDOW_UPDATE:
            self._widen(number, payload)
        elif kind == PING:
            self._take_ping(flags, number, payload)
        elif kind == RST_STREAM:
            self._reset(number, payload)
        elif kind == SETTINGS:
            self._follow(flags, number, payload)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients must not send PUSH_PROMISE")
        else:
            if kind == GOAWAY and (number or len(payload) < 8):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "invalid GOAWAY")
            if kind == PRIORITY_FRAME and not number:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
            if kind == PRIORITY_FRAME and len(payload) != 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "invalid PRIORITY")
            self.count_useless()  # extension frames are also skipped

    def count_useless(self, count: int = 1) -> None:
        """Count a useless frame, or one that costs as much as `count` of them."""
        self._useless.count(count)
        self.limits.useless.count(self.address, count, self._useless.counted)

    def _widen(self, number: int, payload: bytes) -> None:
        more = read_increment(payload)
        self._useless.count_widening()
        if number and (not number % 2 or number > self._last):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was not opened"
            )
        if not number:
            if not more:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self.out.widen(more)
        elif (stream := self.streams.get(number)) is not None:
            if more:
                stream.widen(more)
            else:
                stream.reset(ErrorCode.PROTOCOL_ERROR)

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "invalid RST_STREAM")
        if not number % 2 or number > self._last:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream that was not opened"
            )
        stream = self.streams.get(number)
        if stream is None:
            self.count_useless()
        else:
            stream.lost()
            self.count_useless(1 + stream.head.held // HELD_BYTES_LIKE_ONE)
        self._left.end(number)

    def _follow(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledgment with a payload"
                )
            self.count_useless()
            return
        self.count_useless(SETTINGS_LIKE)
        more = self.out.follow(payload)
        self.out.write(frame(SETTINGS, ACK, 0))
        if more:
            for stream in list(self.streams.values()):
                if stream.send_window + more > MAX_WINDOW:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window too large")
                stream.widen(more)

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING of invalid length")
        self.count_useless()
        if not flags & ACK:
            self.out.write(frame(PING, ACK, 0, payload))
        elif payload == DRAIN_PING and self._draining and self._last_taken == MAX_WINDOW:
            self._last_taken = self._last
            self.out.write(goaway(self._last, ErrorCode.NO_ERROR))
            self._close_if_over()

    # -- the end

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        if self.streams.pop(stream.number, None) is None:
            return
        if not stream.ended:
            self._left.add(stream.number)
        self.out.forget(stream.number)
        self._since = self._loop.time()
        self.limits.ended(stream)
        if self._last_taken != MAX_WINDOW:
            self._close_if_over()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """Close the connection and send the reason."""
        if self._closing:
            return
        if self._frames.greeted:
            self.out.write(goaway(self._last, code, reason))
        self._end()

    def drain(self, reason: str = "shutting down") -> None:
        """Accept no new calls, and close the connection after the current ones.

        reason: Sent to the peer. Default: the server stops.

        Calls already sent are accepted, because the peer's answer to PING arrives after them.
        """
        if self._closing or self._last_taken != MAX_WINDOW:
            return
        self.out.write(goaway(MAX_WINDOW, ErrorCode.NO_ERROR, reason))
        self.out.write(frame(PING, 0, 0, DRAIN_PING))
        self._draining = True

    def _close_if_over(self) -> None:
        if not self.streams and not self._closing:
            self._end()

    def _end(self) -> None:
        self._end_streams()
        self._since = self._loop.time()
        self.out.flush()
        self.transport.close()

    def _end_streams(self) -> None:
        self._closing = True
        self.out.clear()
        self._frames.forget()
        for stream in list(self.streams.values()):
            stream.lost()

    def tick(self, now: float) -> None:
        """Run once a second: check liveness, idle time and read rate."""
        self._useless.tick()
        held = self._frames.pending + self._blocks.held + self.transport.get_write_buffer_size()
        self._held.set(held if held > SMALL_BYTES else 0)
        if self._closing:
            if now - self._since > PING_TIMEOUT_SECONDS:
                self.transport.abort()  # the peer does not read the last bytes
        elif not self._frames.settled:
            if now - self._began > HANDSHAKE_SECONDS:
                self.transport.abort()
        elif now - self._pinged > PING_TIMEOUT_SECONDS:
            self.transport.abort()
        elif not self.streams and now - self._since > self.limits.idle_seconds:
            self.fail(ErrorCode.NO_ERROR, "idle")
        else:
            if self._pinged == inf and now - self._heard > PING_SECONDS and not self.out.paused:
                self._pinged = now
                self.out.write(frame(PING, 0, 0, OUR_PING))
            self._check_reading(now)
        if now >= self._accepts_until and self._frames.settled:
            self._retire(now)

    def _retire(self, now: float) -> None:
        """Drain an old connection; its peer opens another one, perhaps to a newer replica."""
        if not self._draining:
            self.drain("max_age")
        elif now >= self._accepts_until + self.limits.grace:
            for stream in list(self.streams.values()):
                if stream.call is not None:
                    stream.call.close(TOO_OLD)

    def _check_reading(self, now: float) -> None:
        """Close the connection if the peer is too slow to read its responses."""
        if not any(stream.waits for stream in self.streams.values()):
            self._reading.rest()
        elif self._reading.is_slow(now, self.out.sent - self.transport.get_write_buffer_size()):
            self.transport.abort()
