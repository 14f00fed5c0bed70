"""Answers a constant, on bare uvloop: what connections and callers alone cost.

PORT is the port. It closes where it is asked to.
"""

import asyncio
import os

import uvloop

BODY = b'{"prediction":[[0.1,0.2,0.3,0.4,0.5]],"inference_time_ms":0.01}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)
LAST = ANSWER.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


class Constant(asyncio.Protocol):
    """One answer for each read: right while requests come whole and one at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = transport.write  # type: ignore[attr-defined]
        self.close = transport.close

    def data_received(self, data: bytes) -> None:
        if b"\r\nConnection: close\r\n" in data:
            self.write(LAST)
            self.close()
        else:
            self.write(ANSWER)


async def main() -> None:
    loop = asyncio.get_running_loop()
    port = int(os.environ["PORT"])
    server = await loop.create_server(Constant, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
