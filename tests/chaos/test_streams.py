"""gRPC streams of a process that is told to stop."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import numpy as np
from grpc import StatusCode, aio

from app.rpc.inference_pb2 import ModelStreamInferResponse
from tests.chaos.callers import factor_of, put
from tests.e2e.processes import cohort, free_port
from tests.rpc.client import Client, arrays_of, connected, raw_request
from tests.waiting import until

STREAMS = 4


class Stream:
    """A stream that sends numbers as fast as it may, and checks each answer.

    sent, answered: How many.
    """

    def __init__(self, client: Client) -> None:
        self.sent = self.answered = 0
        self._stream = client.stream()

    async def live(self) -> StatusCode:
        """Send until the stream ends; how it did."""
        sending = asyncio.create_task(self._send())
        try:
            while (message := await self._stream.read()) is not aio.EOF:
                assert isinstance(message, ModelStreamInferResponse)
                assert not message.error_message
                answer = message.infer_response
                assert answer.id == str(self.answered)
                wanted = np.float32(self.answered * factor_of(1))
                assert (arrays_of(answer)["y"] == wanted).all()
                self.answered += 1
        except aio.AioRpcError as ended:
            return ended.code()
        finally:
            sending.cancel()
        return await self._stream.code()

    async def _send(self) -> None:
        while True:
            x = np.full((1, 3), self.sent, "f4")
            message = raw_request("times", {"x": x}, id=str(self.sent))
            await self._stream.write(message.SerializeToString())
            self.sent += 1


async def test_what_a_stream_has_sent_is_answered_or_it_is_told(
    models: Path, tmp_path: Path, cache: Path
) -> None:
    """The answers are to the first messages, in order and without a gap, and then UNAVAILABLE."""
    put(models)
    with cohort(models, tmp_path, grpc_port=free_port(), cache=cache) as server:
        async with connected(server.grpc) as client:
            streams = [Stream(client) for _ in range(STREAMS)]
            lives = [asyncio.create_task(stream.live()) for stream in streams]
            await until(lambda: all(stream.answered > 20 for stream in streams))
            server.process.send_signal(signal.SIGTERM)
            ends = await asyncio.gather(*lives)
        assert ends == [StatusCode.UNAVAILABLE] * STREAMS
        assert all(stream.answered <= stream.sent for stream in streams)
        assert await asyncio.to_thread(server.process.wait, 60) == 0
    assert '"level": "error"' not in server.logged
