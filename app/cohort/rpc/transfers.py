"""Memory of calls that receive and send, and limits of calls that need no key.

Connections count received and queued bytes (`cohort.http2`). This module counts the memory of a
message after a call has read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from cohort.auth.authority import Caller
from cohort.codec.compression import decompress
from cohort.connections.memory import SMALL_BYTES, MemoryBudget, MemoryHold
from cohort.errors import InvalidInput, Overloaded, TooLarge, UnsupportedMedia, quoted
from cohort.http2 import SentMessage
from cohort.observability.access_log import AccessLog
from cohort.observability.tracing import Carrier, Tracer
from cohort.rpc.errors import MessageTooLarge, TrailingMetadata
from cohort.rpc.status import StatusCode
from cohort.rpc.tracing import Traced

OPEN_BYTES, OPEN_SECONDS = 4096, 10.0
"""Maximum size of a message of a call that needs no key, and maximum wait for the first one."""

CallMetadata = Iterable[tuple[str, str | bytes]]
"""A call's metadata pairs: names are lower case, and names that end in -bin have bytes."""


class Aborted(Exception):
    """The exception that ends a handler after its call got a status."""


class CallFacts(Protocol):
    """The metadata and deadline of a call.

    parsed: Its only message, if that was parsed already; else None.
    deadline: The caller's deadline on the monotonic clock; None without one.
    """

    @property
    def parsed(self) -> object: ...

    @property
    def deadline(self) -> float | None: ...

    @property
    def encoding(self) -> str:
        """Return the compression of the call's compressed messages."""

    @property
    def request_id(self) -> str:
        """Return the `x-request-id` that was sent, or "" if it is missing or invalid."""

    def peer(self) -> str:
        """Return the client address in gRPC's format, which identifies the connection."""

    def invocation_metadata(self) -> CallMetadata:
        """Return the metadata that the caller sent."""

    def client_certificate(self) -> bytes | None:
        """Return the caller's certificate in PEM, or None."""

    @property
    def traced(self) -> Traced | None:
        """Return its trace; None if it was not drawn yet."""

    def sent_headers(self) -> Carrier:
        """Return the metadata that the caller sent, as it was sent."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, or None without one."""

    def set_trailing_metadata(self, metadata: TrailingMetadata) -> None:
        """Set the trailing metadata; metadata given to `abort` overrides it."""


class Context(CallFacts, Protocol):
    """The interface of a call for handlers that run as tasks."""

    @property
    def admitted(self) -> Caller | None:
        """Return the caller if its quota already counts the call, else None."""

    @property
    def has_more(self) -> bool:
        """Return True if more bytes have arrived after the message that was read."""

    async def read(self, *, due: bool, anyone: bool) -> SentMessage | None:
        """Return the next message, or None at the end."""

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until the send queue is empty."""

    async def abort(
        self, code: StatusCode, details: str, metadata: TrailingMetadata = ()
    ) -> NoReturn:
        """End the call with this status. Raises Aborted."""


class Transfers:
    """A receiver of messages that limits the memory of calls.

    memory: The memory budget of messages.
    max_message_bytes: Maximum size of a message, also after decompression.
    max_open_calls: Maximum calls in progress that need no key.
    access_log: Receives a line for each call; default None: no lines.
    tracer: Traces calls; default None: nothing is traced.
    """

    def __init__(
        self,
        memory: MemoryBudget,
        max_message_bytes: int,
        max_open_calls: int,
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.memory = memory
        self.tracer = tracer
        self.access_log = access_log
        self._limit = max_message_bytes
        self._open_calls, self._max_open_calls = 0, max_open_calls

    @contextmanager
    def enter_open(self) -> Iterator[None]:
        """Count a call that needs no key, until it ends. Raises Overloaded at the limit."""
        if self._open_calls >= self._max_open_calls:
            raise Overloaded("too many calls that need no key are in progress")
        self._open_calls += 1
        try:
            yield
        finally:
            self._open_calls -= 1

    async def receive(
        self, context: Context, *, due: bool = False, anyone: bool = False
    ) -> SentMessage | None:
        """Return the next message of a call as it was sent, or None at the end.

        due: True if the message must arrive now; a stream may pause between its messages.
        anyone: True if the call needs no key, so that the message must be small.

        Raises InvalidInput if it arrives too slowly, Overloaded if the server is over a limit, and
        MessageTooLarge.
        """
        return await context.read(due=due, anyone=anyone)

    async def unpack(
        self, context: CallFacts, message: SentMessage, hold: MemoryHold, *, anyone: bool = False
    ) -> bytes | bytearray:
        """Return a message decompressed, and count its memory.

        Raises InvalidInput, Overloaded, MessageTooLarge, or UnsupportedMedia for an unknown
        compression.
        """
        data = message.data
        if len(data) > SMALL_BYTES:
            hold.add(len(data))
        if not message.compressed:
            return data
        coding = context.encoding
        if coding == "identity":
            raise InvalidInput(
                "the message is marked as compressed, but the call has no grpc-encoding"
            )
        if coding not in ("gzip", "deflate"):
            raise UnsupportedMedia(f"this server accepts gzip and deflate, not {quoted(coding)}")
        try:
            return await decompress(coding, data, self.most(anyone), hold.add)
        except TooLarge as error:
            raise MessageTooLarge(error.message) from None

    def most(self, anyone: bool) -> int:
        """Return the maximum size of a message."""
        return OPEN_BYTES if anyone else self._limit


def message_too_large(size: int, most: int) -> MessageTooLarge:
    """Return the error for a message of `size` bytes, above the limit `most`."""
    if most == OPEN_BYTES:
        return MessageTooLarge(f"a message of this call must have at most {OPEN_BYTES} bytes")
    return MessageTooLarge(f"the message has {size} bytes, but this server accepts at most {most}")
