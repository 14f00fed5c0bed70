"""Simulated callers: HTTP bytes in, in pieces and late; HTTP bytes out, checked."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from uvicorn import Config

from cohort.http.fast_path import protocol_factory
from cohort.http.fast_path.protocol import HotProtocol
from tools.simulation.models import POISON
from tools.simulation.order import KEYS

if TYPE_CHECKING:
    from tools.simulation.world import World


@dataclass
class Asked:
    """A request that was sent, and when."""

    id: int
    model: str
    rows: list[list[float]]
    timeout: float
    sent: float
    poisoned: bool
    priority: int
    status: int = 0
    answered: float = 0.0


_LENGTH = re.compile(rb"content-length: (\d+)\r\n")


async def _no_application(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("only the fast path is simulated")


CONFIG = Config(_no_application, log_config=None, ws="none", lifespan="off")


@dataclass
class Caller(asyncio.Transport):
    """A connection seen from its caller, which is also the transport that the server writes to."""

    world: World
    waiting: deque[Asked] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)
    left: bool = False

    def __post_init__(self) -> None:
        self._closing = False
        self._received = bytearray()
        self._changed = asyncio.Event()
        hot = self.world.server.hot
        self._protocol: HotProtocol = protocol_factory(hot)(
            config=CONFIG, server_state=self.world.server_state, app_state={}
        )
        self._protocol.connection_made(self)

    # -- what a caller does

    async def live(self) -> None:
        """Ask, pipelined or one after the other, and stay or leave."""
        random = self.world.random
        for _ in range(random.randint(1, 6)):
            if self._closing:
                return
            batch = [self._make() for _ in range(random.choice((1, 1, 1, 2, 5)))]
            data = b"".join([_encode(one) for one in batch])
            self.waiting.extend(batch)
            self.asked += batch
            while data and not self._closing:
                size = len(data) if random.random() < 0.8 else random.randint(1, len(data))
                self._protocol.data_received(data[:size])
                data = data[size:]
                if data:
                    await asyncio.sleep(random.choice((0.0, 1e-4, 0.05)))
            if random.random() < 0.08:
                await asyncio.sleep(random.choice((0.0, 1e-4, 0.01, 1.0)))
                self._leave()
                return
            while self.waiting and not self._closing:
                self._changed.clear()
                await self._changed.wait()
            await asyncio.sleep(random.choice((0.0, 0.0, 1e-3, 0.3)))

    def _make(self) -> Asked:
        world, random = self.world, self.world.random
        id_ = world.next_id()
        poisoned = random.random() < 0.04
        rows = [[float(id_), 0.5]] * random.choice((1, 1, 1, 2, 7))
        if poisoned:
            rows = [*rows[:-1], [float(id_), POISON]]
        timeout = random.choice((0.0, 0.0, 0.0, 0.003, 0.5))
        model = random.choice(world.models)
        priority = world.order.priorities[id_] = random.choice(world.priorities)
        return Asked(id_, model, rows, timeout, world.turns.now, poisoned, priority)

    def _leave(self) -> None:
        self.left = True
        self.abort()

    # -- the transport

    def write(self, data: Any) -> None:
        """Receive bytes of responses."""
        if self._closing:
            return
        self._received += data
        while (end := self._received.find(b"\r\n\r\n") + 4) > 3:
            length = _LENGTH.search(self._received, 0, end)
            assert length is not None, bytes(self._received)
            size = end + int(length[1])
            if len(self._received) < size:
                break
            status, body = int(self._received[9:12]), bytes(self._received[end:size])
            del self._received[:size]
            self._take(status, body)
        self._changed.set()

    def _take(self, status: int, body: bytes) -> None:
        world = self.world
        if not self.waiting:
            world.violated(f"an answer to nothing: {status} {body[:200]!r}")
            return
        asked = self.waiting.popleft()
        asked.status, asked.answered = status, world.turns.now
        world.answered(asked, json.loads(body))

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def write_eof(self) -> None: ...

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """The server, or the caller, closes the connection."""
        if not self._closing:
            self._closing = True
            self._changed.set()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def _encode(asked: Asked) -> bytes:
    document: dict[str, object] = {"inputs": {"x": asked.rows}}
    if asked.timeout:
        document["timeout_ms"] = asked.timeout * 1000
    body = json.dumps(document).encode()
    head = (
        f"POST /models/{asked.model}/predict HTTP/1.1\r\nhost: a\r\n"
        f"x-api-key: {KEYS[asked.priority]}\r\ncontent-length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body
