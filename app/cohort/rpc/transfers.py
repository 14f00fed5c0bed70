"""What calls hold while they receive and send, and the limits of those that need no key.

The connections count what arrives and what waits to be sent (`cohort.http2`); here is what a
message needs once a call has it.
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
from cohort.rpc.errors import MessageTooLarge, TrailingMetadata
from cohort.rpc.status import StatusCode

OPEN_BYTES, OPEN_SECONDS = 4096, 10.0
"""A message of a call that needs no key: its size, and how long the first one may take."""

CallMetadata = Iterable[tuple[str, str | bytes]]
"""A call's pairs as gRPC has them: names in lower case, bytes under those that end in -bin."""


class Aborted(Exception):
    """A call has been ended with a status."""


class CallFacts(Protocol):
    """What a call came with, and how long it may take.

    parsed: Its only message, where that was parsed already; None: it was not.
    deadline: When its caller stops waiting, on the monotonic clock; None: it did not say.
    """

    @property
    def parsed(self) -> object: ...

    @property
    def deadline(self) -> float | None: ...

    @property
    def encoding(self) -> str:
        """How its compressed messages are compressed."""

    @property
    def request_id(self) -> str:
        """The `x-request-id` that was sent; "" where there is none that can be passed on."""

    def peer(self) -> str:
        """What tells its connection from others: an address, as gRPC writes it."""

    def invocation_metadata(self) -> CallMetadata:
        """What the caller sent beside its messages."""

    def client_certificate(self) -> bytes | None:
        """The caller's certificate in PEM; None where it has none."""

    def time_remaining(self) -> float | None:
        """The seconds until its deadline; None where it has none."""

    def set_trailing_metadata(self, metadata: TrailingMetadata) -> None:
        """What its end carries, unless `abort` is given other."""


class Context(CallFacts, Protocol):
    """A call, as what serves it by a task sees it."""

    @property
    def admitted(self) -> Caller | None:
        """Its caller, where the call is counted in that caller's quota already."""

    @property
    def has_more(self) -> bool:
        """Whether anything has come behind the message that was read."""

    async def read(self, *, due: bool, anyone: bool) -> SentMessage | None:
        """The next message; None where there are no more."""

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until it is on its way."""

    async def abort(
        self, code: StatusCode, details: str, metadata: TrailingMetadata = ()
    ) -> NoReturn:
        """End it by this status. Raises Aborted."""


class Transfers:
    """Receives messages, and bounds what calls hold.

    memory: The budget in which it counts.
    max_message_bytes: The size of a message at most, also unpacked.
    max_open_calls: How many calls that need no key may be in progress.
    access_log: Takes a line for each call; default None: there is none.
    """

    def __init__(
        self,
        memory: MemoryBudget,
        max_message_bytes: int,
        max_open_calls: int,
        access_log: AccessLog | None = None,
    ) -> None:
        self.memory = memory
        self.access_log = access_log
        self._limit = max_message_bytes
        self._open_calls, self._max_open_calls = 0, max_open_calls

    @contextmanager
    def enter_open(self) -> Iterator[None]:
        """Count a call that needs no key, until it ends. Raises Overloaded where there are many."""
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
        """The next message of a call, as it was sent; None where there are no more.

        due: Whether it has to come now; a stream may pause between its messages.
        anyone: Whether the call needs no key, so that the message is small.

        Raises InvalidInput where it arrives too slowly, Overloaded where there is no room, and
        MessageTooLarge.
        """
        return await context.read(due=due, anyone=anyone)

    async def unpack(
        self, context: CallFacts, message: SentMessage, hold: MemoryHold, *, anyone: bool = False
    ) -> bytes | bytearray:
        """Give a message as it was before it was compressed, and hold what it needs.

        Raises InvalidInput, Overloaded, MessageTooLarge, or UnsupportedMedia for a way of
        compressing that this server does not know.
        """
        data = message.data
        if len(data) > SMALL_BYTES:
            hold.add(len(data))
        if not message.compressed:
            return data
        coding = context.encoding
        if coding == "identity":
            raise InvalidInput("the message says that it is compressed, and the call does not")
        if coding not in ("gzip", "deflate"):
            raise UnsupportedMedia(f"this server takes gzip and deflate, not {quoted(coding)}")
        try:
            return await decompress(coding, data, self.most(anyone), hold.add)
        except TooLarge as error:
            raise MessageTooLarge(error.message) from None

    def most(self, anyone: bool) -> int:
        """The size of a message at most."""
        return OPEN_BYTES if anyone else self._limit


def message_too_large(size: int, most: int) -> MessageTooLarge:
    """A message of so many bytes is not taken."""
    if most == OPEN_BYTES:
        return MessageTooLarge(f"a message of this call may have {OPEN_BYTES} bytes")
    return MessageTooLarge(f"the message has {size} bytes, and this server takes {most} at most")
