"""What gRPC's library holds for callers: messages that arrive, and responses that are read.

A call is given a message once all of it is there, and is over once its response was read. Until
then the library has the bytes, up to the largest message for each call. Here they count in the
memory budget as they do over HTTP: several times a second the kernel is asked how many bytes
arrived on each connection with a call that waits, and those that no call was given are held.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import structlog
from grpc import aio

from app.codec.compression import decompress, detect_coding
from app.data_plane import SMALL_BYTES, MemoryBudget, MemoryHold
from app.data_plane.pace import BODY_TOO_SLOW, Pace
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
"""How often connections are looked at, and in which share of the time at most."""

FORGET_SECONDS = 10.0
"""How often connections that are gone are forgotten."""

OVERHEAD_BYTES = 128
"""What a call sends beside its message: frames and headers, most of which HTTP/2 has by number."""

SURELY_A_MESSAGE_BYTES = 2**20
"""What is held at least of a message that arrives too slowly: less may be overhead."""

Context = aio.ServicerContext[bytes, bytes]


class _Waiting:
    """A call that waits for a message."""

    __slots__ = ("refusal", "since", "task")

    def __init__(self, task: asyncio.Task[object] | None, since: int) -> None:
        self.task = task  # gRPC makes one for each call
        self.since = since  # the number of looks by then
        self.refusal: CohortError | None = None

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
    """

    def __init__(self, memory: MemoryBudget, max_message_bytes: int) -> None:
        self.memory = memory
        self._limit = max_message_bytes
        self._connections: dict[PeerAddress, _Connection] = {}
        self._peers: dict[str, _Connection] = {}  # by the names that gRPC gives them
        self._looks = 0
        self._matched = monotonic()
        self._busy = asyncio.Event()  # some connection is worth a look

    async def receive(self, context: Context) -> bytes | None:
        """The next message of a call, as it was sent; None where there are no more.

        Raises InvalidInput where it arrives too slowly, and Overloaded where there is no room.
        """
        connection = self._of(context)
        waiting = _Waiting(asyncio.current_task(), self._looks)
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
        return data

    def end_receiving(self) -> None:
        """Refuse all calls that wait for a message."""
        error = NotReady("the server is stopping, and the message was not whole in time")
        for connection in self._connections.values():
            for waiting in list(connection.waiting):
                waiting.refuse(error)

    async def unpack(self, data: bytes, hold: MemoryHold) -> bytes:
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
            return await decompress(coding, data, self._limit, hold.add)
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
            await asyncio.sleep(max(LOOK_SECONDS, took * LOOK_SHARE))
            began = monotonic()
            try:
                await self._look_at_all(port)
            except Exception:
                log.exception("cannot look at connections")
            took = monotonic() - began

    async def _look_at_all(self, port: int) -> None:
        seen = {
            address: one
            for address, one in self._connections.items()
            if one.waiting or one.unread or one.hold.size
        }
        unmatched = any(one.descriptor is None for one in seen.values())
        if unmatched or monotonic() - self._matched > FORGET_SECONDS:
            self._matched = monotonic()
            self._match(await asyncio.to_thread(find_sockets, port), seen)
        sockets = {
            address: one.descriptor for address, one in seen.items() if one.descriptor is not None
        }
        progress = await asyncio.to_thread(read_progress, sockets)
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
        one.accounted = min(one.accounted, one.received)
        arrived = min(one.received - one.accounted, len(one.waiting) * self._limit)
        if refusal := self._hold(one, arrived):
            for call in waiting or one.waiting:
                call.refuse(refusal)
        now = monotonic()
        if one.unread <= 0:
            one.reading.rest()
        elif one.reading.is_slow(now, progress.taken):
            end_connection(address, one.descriptor or -1)

    def _hold(self, one: _Connection, arrived: int) -> CohortError | None:
        """Hold so many bytes, or say why the calls that they are for have to go."""
        if arrived > SURELY_A_MESSAGE_BYTES and one.arriving.is_slow(monotonic(), one.received):
            return InvalidInput(BODY_TOO_SLOW)
        if arrived <= SURELY_A_MESSAGE_BYTES:
            one.arriving.rest()
        try:
            if arrived > one.hold.size:
                one.hold.add(arrived - one.hold.size)
            else:
                one.hold.set(arrived)
        except Overloaded as error:
            return error
        return None
