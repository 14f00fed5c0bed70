"""gRPC streams of a process that is asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np

from cohort.rpc.inference_pb2 import ModelStreamInferResponse
from tests.chaos.callers import factor_of, put
from tests.e2e.processes import cohort, free_port
from tests.rpc.client import PATH, arrays_of, raw_request
from tests.waiting import PATIENCE, wait_until

STREAMS = 4


class Stream:
    """A stream that sends numbers as fast as it may, and checks each answer.

    It does not use grpc.aio, which reports INTERNAL if a message is being sent when a call ends.

    sent, answered: Numbers of messages.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.sent = self.answered = 0
        self._call: grpc.StreamStreamMultiCallable[bytes, ModelStreamInferResponse]
        self._call = channel.stream_stream(
            f"{PATH}/ModelStreamInfer",
            response_deserializer=ModelStreamInferResponse.FromString,
        )

    def live(self) -> grpc.StatusCode:
        """Send until the stream ends; how it did."""
        try:
            for message in self._call(self._requests()):
                assert not message.error_message
                answer = message.infer_response
                assert answer.id == str(self.answered)
                wanted = np.float32(self.answered * factor_of(1))
                assert (arrays_of(answer)["y"] == wanted).all()
                self.answered += 1
        except grpc.RpcError as ended:
            return ended.code()
        return grpc.StatusCode.OK

    def _requests(self) -> Iterator[bytes]:
        while True:
            x = np.full((1, 3), self.sent, "f4")
            self.sent += 1
            yield raw_request("times", {"x": x}, id=str(self.sent - 1)).SerializeToString()


def test_what_a_stream_has_sent_is_answered_or_it_is_told(
    models: Path, tmp_path: Path, cache: Path
) -> None:
    """The answers are to the first messages, in order and without a gap, and then UNAVAILABLE."""
    put(models)
    with (
        cohort(models, tmp_path, grpc_port=free_port(), cache=cache) as server,
        grpc.insecure_channel(server.grpc) as channel,
        ThreadPoolExecutor(STREAMS) as threads,
    ):
        streams = [Stream(channel) for _ in range(STREAMS)]
        lives = [threads.submit(stream.live) for stream in streams]
        wait_until(lambda: all(stream.answered > 20 for stream in streams))
        server.process.send_signal(signal.SIGTERM)
        assert [life.result() for life in lives] == [grpc.StatusCode.UNAVAILABLE] * STREAMS
        assert all(stream.answered <= stream.sent for stream in streams)
        assert server.process.wait(PATIENCE) == 0
    assert '"level": "error"' not in server.logged
