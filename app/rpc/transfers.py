"""What gRPC's library holds for callers: messages that arrive, and responses that are read.

A call is given a message once all of it is there, and is over once its response was read. Until
then the library has the bytes, up to the largest message for each call. Here they count in the
memory budget as they do over HTTP: several times a second the kernel is asked how many bytes
arrived on each connection with a call that waits, and those that no call was given are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from time import monotonic

import structlog
from grpc import aio

from app.access_log import AccessLog
from app.codec.compression import decompress, detect_coding
from app.data_plane import SMALL_BYTES, MemoryBudget, MemoryHold
from app.data_plane.pace import BODY_TOO_SLOW, MIN_BYTES_PER_SECOND, WINDOW_SECONDS, Pace
from app.errors import CohortError, InvalidInput, NotReady, Overloaded, TooLarge
from app.rpc.errors import MessageTooLarge
from app.rpc.sockets import (
    PeerAddress,
    Progress,
    end_connection,
    find_sockets,
    parse_peer,
    read_progress,
)

log = structlog.get_logger("cohort.rpc")

LOOK_SECONDS = 0.1
LOOK_SHARE = 20
LONGEST_PAUSE_SECONDS = 1.0
"""How often connections are looked at, in which share of the time, and after what at most."""

FORGET_SECONDS = 10.0
"""How often connections that are gone are forgotten."""

OVERHEAD_BYTES = 128
"""What a call sends beside its message and its metadata: frames, and headers of HTTP/2's own."""

ALIVE_BYTES = 8
"""What a connection may send from one look to the next that belongs to no call, such as pings."""

SURELY_A_MESSAGE_BYTES = 2**20
"""What is held at least of a message that arrives too slowly: less may be overhead."""

OPEN_BYTES, OPEN_SECONDS = 4096, 10.0
"""A message of a call that needs no key: its size, and how long the first one may take."""

OPEN_OVERHEAD_BYTES = 2**16
"""What a connection may send beside such messages before one of them is taken for too large."""

WINDOW_UPDATE_SHARE = 512
"""Of so many bytes of responses, one comes back: HTTP/2's frames that let the next ones be sent."""

Context = aio.ServicerContext[bytes, bytes]

CallMetadata = Iterable[tuple[str, str | bytes]]
"""A call's pairs as gRPC has them: names in lower case, bytes under those that end in -bin."""


class _Waiting:
    """A call that waits for a message."""

    __slots__ = ("anyone", "due", "mark", "refusal", "since", "task")

    def __init__(self, task: asyncio.Task[object] | None, since: int, *, anyone: bool) -> None:
        self.task = task  # gRPC makes one for each call
        self.since = since  # the number of looks by then
        self.anyone = anyone  # needs no key
        self.due = inf  # when the message has to be there, or has to go on arriving
        self.mark = 0  # bytes received when `due` was set
        self.refusal: CohortError | None = None

    def expect(self, received: int) -> None:
        """From now on, the message has to arrive in time."""
        self.due = monotonic() + (OPEN_SECONDS if self.anyone else WINDOW_SECONDS)
        self.mark = received

    def look(self, received: int | None) -> None:
        """Refuse the call if its message is late.

        received: The bytes of its connection; None where they are not known.
        """
        if self.anyone:
            self.refuse(InvalidInput(f"no message was there within {OPEN_SECONDS:g} s"))
        elif received is not None:
            if received - self.mark < MIN_BYTES_PER_SECOND * WINDOW_SECONDS:
                self.refuse(InvalidInput(BODY_TOO_SLOW))
            self.expect(received)

    def refuse(self, error: CohortError) -> None:
        if self.task is not None:
            self.refusal = error
            self.task.cancel()


class _Connection:
    """A connection as it was last looked at."""

    __slots__ = (
        "accounted",
        "arriving",
        "descriptor",
        "hold",
        "reading",
        "received",
        "unread",
        "waiting",
    )

    def __init__(self, hold: MemoryHold) -> None:
        self.hold = hold  # of what arrived and was given to no call
        self.descriptor: int | None = None
        self.received = 0
        self.accounted = 0  # bytes received that calls were given, or that were overhead
        self.waiting: set[_Waiting] = set()
        self.unread = 0  # bytes of responses of calls that are not over
        self.arriving, self.reading = Pace(), Pace()


class Transfers:
    """Receives messages, and bounds what arrives and what waits to be read.

    memory: The budget in which both count.
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
        self._connections: dict[PeerAddress, _Connection] = {}
        self._peers: dict[str, _Connection] = {}  # by the names that gRPC gives them
        self._looks = 0
        self._matched = monotonic()
        self._busy = asyncio.Event()  # some connection is worth a look
        self._looker = ThreadPoolExecutor(1, "look")  # no other work keeps it waiting

    def begin(self, context: Context, metadata: CallMetadata) -> None:
        """Note what a call sent before its messages."""
        self._of(context).accounted += sum(len(name) + len(value) for name, value in metadata)
        self._busy.set()

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
    ) -> bytes | None:
        """The next message of a call, as it was sent; None where there are no more.

        due: Whether it has to come now; a stream may pause between its messages.
        anyone: Whether the call needs no key, so that the message is small.

        Raises InvalidInput where it arrives too slowly, Overloaded where there is no room, and
        MessageTooLarge.
        """
        connection = self._of(context)
        waiting = _Waiting(asyncio.current_task(), self._looks, anyone=anyone)
        if due:
            waiting.expect(connection.received)
        connection.waiting.add(waiting)
        self._busy.set()
        try:
            data: object = await context.read()
        except asyncio.CancelledError:
            if waiting.refusal is None or waiting.task is None:
                raise
            waiting.task.uncancel()
            raise waiting.refusal from None
        finally:
            connection.waiting.discard(waiting)
        if not isinstance(data, bytes):
            return None
        connection.accounted += len(data) + OVERHEAD_BYTES
        connection.hold.set(max(connection.hold.size - len(data), 0))
        if anyone and len(data) > OPEN_BYTES:
            raise _open_too_large()
        return data

    def end_receiving(self) -> None:
        """Refuse all calls that wait for a message."""
        error = NotReady("the server is stopping, and the message was not whole in time")
        for connection in self._connections.values():
            for waiting in list(connection.waiting):
                waiting.refuse(error)

    async def unpack(self, data: bytes, hold: MemoryHold, *, anyone: bool = False) -> bytes:
        """Give a message as it was before it was compressed, and hold what it needs.

        gRPC would unpack any number at once: 200 calls of 60 KB each took 3.4 GB.

        Raises InvalidInput, Overloaded or MessageTooLarge.
        """
        if len(data) > SMALL_BYTES:
            hold.add(len(data))
        coding = detect_coding(data)
        if coding is None:
            return data
        try:
            return await decompress(coding, data, self._most(anyone), hold.add)
        except TooLarge as error:
            raise MessageTooLarge(error.message) from None

    def hold_response(self, context: Context, size: int) -> None:
        """Hold a large response until its call is over: it was read, or its caller left."""
        if size <= SMALL_BYTES:
            return
        connection, hold = self._of(context), self.memory.hold()
        hold.set(2 * size)  # gRPC copies it
        connection.unread += size
        self._busy.set()

        def over(_: object) -> None:
            connection.unread -= size
            hold.set(0)

        context.add_done_callback(over)  # type: ignore[arg-type]  # the stubs have it with two arguments

    async def write(self, context: Context, response: bytes) -> None:
        """Write one of a stream's responses, and wait until it is on its way."""
        connection = self._of(context)
        connection.unread += len(response)
        connection.accounted += len(response) // WINDOW_UPDATE_SHARE
        self._busy.set()
        try:
            await context.write(response)
        finally:
            connection.unread -= len(response)

    def _of(self, context: Context) -> _Connection:
        peer = context.peer()
        connection = self._peers.get(peer)
        if connection is None:
            connection = self._peers[peer] = _Connection(self.memory.hold())
            self._connections[parse_peer(peer)] = connection
        return connection

    async def watch(self, port: int) -> None:
        """Look at connections while there is something to see. Runs until it is cancelled.

        port: The server's own.
        """
        took = 0.0
        while True:
            await self._busy.wait()
            self._busy.clear()
            await asyncio.sleep(min(max(LOOK_SECONDS, took * LOOK_SHARE), LONGEST_PAUSE_SECONDS))
            began = monotonic()
            try:
                await self._look_at_all(port)
            except Exception:
                log.exception("cannot look at connections")
            took = monotonic() - began

    async def _look_at_all(self, port: int) -> None:
        look = asyncio.get_running_loop().run_in_executor
        seen = {
            address: one
            for address, one in self._connections.items()
            if one.waiting or one.unread or one.hold.size
        }
        unmatched = any(one.descriptor is None for one in seen.values())
        if unmatched or monotonic() - self._matched > FORGET_SECONDS:
            self._matched = monotonic()
            self._match(await look(self._looker, find_sockets, port), seen)
        sockets = {
            address: one.descriptor for address, one in seen.items() if one.descriptor is not None
        }
        progress = await look(self._looker, read_progress, sockets)
        self._looks += 1
        for address, one in seen.items():
            self._look(address, one, progress.get(address))
            self._busy.set()

    def _match(self, sockets: dict[PeerAddress, int], seen: dict[PeerAddress, _Connection]) -> None:
        """Note the connections' descriptors, and forget connections that are gone."""
        for address, one in seen.items():
            one.descriptor = sockets.get(address)
        gone = {
            address: one
            for address, one in self._connections.items()
            if address not in sockets and not one.waiting and not one.unread
        }
        for address, one in gone.items():
            one.hold.set(0)
            del self._connections[address]
        forgotten = set(map(id, gone.values()))
        self._peers = {peer: one for peer, one in self._peers.items() if id(one) not in forgotten}

    def _look(self, address: PeerAddress, one: _Connection, progress: Progress | None) -> None:
        """Hold what has arrived on a connection; refuse its calls where there is no room."""
        now = monotonic()
        for call in one.waiting:
            if now >= call.due:
                call.look(progress and progress.received)
        if progress is None:
            one.descriptor = None
            one.hold.set(0)
            return
        before, one.received = one.received, progress.received
        if one.received < before:  # another connection from the same address
            before = one.accounted = 0
        waiting = [call for call in one.waiting if call.since < self._looks - 1]
        if not waiting:  # none that waited at the last look: what had arrived by then is given
            one.accounted = max(one.accounted, before)
        one.accounted = min(one.accounted + ALIVE_BYTES, one.received)
        arrived = one.received - one.accounted
        most = sum(self._most(call.anyone) for call in one.waiting)
        if waiting and arrived > most + OPEN_OVERHEAD_BYTES and all(x.anyone for x in one.waiting):
            refusal: CohortError | None = _open_too_large()
        else:
            refusal = self._hold(one, min(arrived, most))
        if refusal is not None:
            for call in waiting or one.waiting:
                call.refuse(refusal)
        if one.unread <= 0:
            one.reading.rest()
        elif one.reading.is_slow(now, progress.taken):
            end_connection(address, one.descriptor or -1)

    def _most(self, anyone: bool) -> int:
        """The size of a message at most."""
        return OPEN_BYTES if anyone else self._limit

    def _hold(self, one: _Connection, arrived: int) -> CohortError | None:
        """Hold so many bytes, or say why the calls that they are for have to go."""
        if arrived > SURELY_A_MESSAGE_BYTES and one.arriving.is_slow(monotonic(), one.received):
            return InvalidInput(BODY_TOO_SLOW)
        if arrived <= SURELY_A_MESSAGE_BYTES:
            one.arriving.rest()
        try:
            if arrived > one.hold.size:
                one.hold.add_up_to(arrived)
            else:
                one.hold.set(arrived)
        except Overloaded as error:
            return error
        return None


def _open_too_large() -> MessageTooLarge:
    return MessageTooLarge(f"a message of this call may have {OPEN_BYTES} bytes")
