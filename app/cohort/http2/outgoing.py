"""The sending side of a connection: frames at once, and messages as flow control allows."""

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
"""Bytes unsent by the kernel above which streams keep their data."""

MAX_SENT_AT_ONCE = 1 << 20
"""Bytes of a connection's streams after which other connections go first."""

OUR_LARGEST_FRAME, SHARED_FRAME = 1 << 18, 1 << 16
"""Maximum sizes of a sent frame, even if the peer accepts larger ones.

The second applies if several streams wait.
"""


class Sender(Protocol):
    """A stream with data to send."""

    number: int
    send_window: int
    closed: bool

    @property
    def waits(self) -> int:
        """Return the number of bytes to send."""

    def send_some(self, most: int) -> int:
        """Send a frame of at most `most` bytes, and return its size."""


class Outgoing:
    """Writes to a connection's transport.

    window: Bytes that all streams together may send.
    stream_window: Bytes that a new stream may send.
    frame_size: Maximum frame size of the peer.
    paused: True while the kernel's buffer is full.
    sent: Bytes written so far.
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
        """Return True if streams must wait for their turn."""
        return self.paused or bool(self._waiting)

    def write(self, data: bytes | memoryview) -> None:
        """Send data, or add it to the gathered data."""
        self.sent += len(data)
        if self._gathered is None:
            self.transport.write(data)
        else:
            self._gathered.append(data)

    def gather(self) -> None:
        """Gather the data written in this iteration of the loop.

        Each write is a system call, which costs more than all other work for a small message.
        """
        if self._gathered is None:
            self._gathered = []
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the gathered data."""
        gathered, self._gathered = self._gathered, None
        if gathered and not self.transport.is_closing():
            self.transport.writelines(gathered)

    def wait(self, stream: Sender) -> None:
        """Send a stream's data as the windows allow."""
        self._waiting[stream.number] = stream
        if not self._going_on:
            self.go_on()

    def wait_for_turn(self, stream: Sender) -> None:
        """Send a stream's data in the next iteration of the loop.

        Its window may be widened a thousand times in this one, by a byte each.
        """
        self._waiting[stream.number] = stream
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._next_turn)

    def forget(self, number: int) -> None:
        """Remove a stream that has ended."""
        self._waiting.pop(number, None)

    def clear(self) -> None:
        """Remove all streams."""
        self._waiting.clear()

    def go_on(self) -> None:
        """Send frames of streams in turn, as far as the kernel's buffer and the windows allow."""
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
                    self.flush()  # this may pause the connection
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
        """Widen the window of all streams. Raises ConnectionFault."""
        self.window += more
        if self.window > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window too large")
        if self._waiting:
            self._go_on_soon()

    def follow(self, settings: bytes) -> int:
        """Apply the peer's settings, and return the change of its streams' windows.

        Raises ConnectionFault.
        """
        before = self.stream_window
        for setting, value in settings_in(settings):
            if setting == INITIAL_WINDOW_SIZE:
                self.stream_window = value
            elif setting == MAX_FRAME_SIZE:
                self.frame_size = min(value, OUR_LARGEST_FRAME)
        return self.stream_window - before
