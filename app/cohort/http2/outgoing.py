"""What leaves on a connection: frames at once, and messages as far as the peer lets us."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cohort.http2.frames import (
    FIRST_WINDOW,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    SMALLEST_FRAME,
    ConnectionFault,
    ErrorCode,
    settings_in,
)

UNSENT_BYTES = 1 << 18
"""Bytes that the kernel has not taken, from which streams keep theirs."""

MAX_SENT_AT_ONCE = 1 << 20
"""Bytes of one connection's streams, after which it is another's turn."""

OUR_LARGEST_FRAME, SHARED_FRAME = 1 << 18, 1 << 16
"""The size of a frame that we send, also where the peer takes larger ones; the second where other
streams wait, too.
"""


class Sender(Protocol):
    """A stream with something to send."""

    number: int
    send_window: int
    closed: bool

    @property
    def waits(self) -> int:
        """Bytes that it has to send."""

    def send_some(self, most: int) -> int:
        """Send a frame of at most so many bytes; the bytes it had."""


class Outgoing:
    """Writes to a connection's transport.

    window: Bytes that all streams may send.
    stream_window: Bytes that a new stream may send.
    frame_size: The size of frames that the peer takes.
    paused: Whether the kernel has enough to write.
    sent: Bytes that were written so far.
    """

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.window = self.stream_window = FIRST_WINDOW
        self.frame_size = SMALLEST_FRAME
        self.paused = False
        self.sent = 0
        self._loop = loop
        self._waiting: dict[int, Sender] = {}
        self._going_on = False
        self._gathered: list[bytes | memoryview] | None = None

    @property
    def busy(self) -> bool:
        """Whether streams have to wait for their turn."""
        return self.paused or bool(self._waiting)

    def write(self, data: bytes | memoryview) -> None:
        """Send it: at once, unless it is gathered with others."""
        self.sent += len(data)
        if self._gathered is None:
            self.transport.write(data)
        else:
            self._gathered.append(data)

    def gather(self) -> None:
        """Send what is written in this iteration of the loop together: each write is a call of the
        kernel, which costs more than all else that a small message needs.
        """
        if self._gathered is None:
            self._gathered = []
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered and not self.transport.is_closing():
            self.transport.writelines(gathered)

    def wait(self, stream: Sender) -> None:
        """Send what a stream has, as far as windows let us."""
        self._waiting[stream.number] = stream
        if not self._going_on:
            self.go_on()

    def wait_for_turn(self, stream: Sender) -> None:
        """The same in the next iteration of the loop: its window is widened, perhaps by a byte, and
        perhaps a thousand times in this one.
        """
        self._waiting[stream.number] = stream
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._next_turn)

    def forget(self, number: int) -> None:
        """A stream is over."""
        self._waiting.pop(number, None)

    def clear(self) -> None:
        """Nothing is sent any more."""
        self._waiting.clear()

    def go_on(self) -> None:
        """Send frames of streams in turn, until the kernel has enough or windows are used up."""
        if self._waiting and self._may_send():
            self._gathered = self._gathered or []
            self._take_turns()
            self.flush()

    def _take_turns(self) -> None:
        left, unsent = MAX_SENT_AT_ONCE, 0
        while self._waiting and self._may_send():
            for number, stream in list(self._waiting.items()):
                if stream.closed or not stream.waits or stream.send_window <= 0:
                    self._waiting.pop(number, None)  # until its window is widened
                    continue
                size = stream.send_some(left if len(self._waiting) == 1 else SHARED_FRAME)
                left -= size
                unsent += size
                if unsent >= UNSENT_BYTES:
                    unsent = 0
                    self.flush()  # which may pause us
                    self._gathered = []
                if not self._may_send():
                    return
                if left <= 0:
                    self._go_on_soon()
                    return

    def _may_send(self) -> bool:
        return not self.paused and self.window > 0

    def _next_turn(self) -> None:
        self._going_on = False
        self.go_on()

    def widen(self, more: int) -> None:
        """The peer takes more of all streams. Raises ConnectionFault."""
        self.window += more
        if self.window > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "too wide a window")
        if self._waiting:
            self._go_on_soon()

    def follow(self, settings: bytes) -> int:
        """Take the peer's settings: by how much the windows of its streams are wider.

        Raises ConnectionFault.
        """
        before = self.stream_window
        for setting, value in settings_in(settings):
            if setting == INITIAL_WINDOW_SIZE:
                self.stream_window = value
            elif setting == MAX_FRAME_SIZE:
                self.frame_size = min(value, OUR_LARGEST_FRAME)
        return self.stream_window - before
