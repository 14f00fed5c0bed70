"""Inference calls, from request message to response message."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from app.codec import LARGE_BYTES, is_own_view
from app.codec.codec_thread import codec_thread
from app.data_plane import DataPlane, MemoryHold, Outputs, Sticky, count_bytes, sticky_key
from app.errors import Cancelled, CohortError, DeadlineExceeded, NotLoaded, TooLarge
from app.open_inference import Inference
from app.rpc.calls import find_metadata
from app.rpc.contents import read_request, write_response
from app.rpc.http2.send_queue import Part
from app.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from app.rpc.tracing import Trace
from app.rpc.transfers import CallMetadata
from app.rpc.wire import InferMessage, delimited, read_at_once, read_whole

A = TypeVar("A")
T = TypeVar("T")

_INFER_RESPONSE = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


class InferCalls:
    """Serves inference calls.

    plane: Picks the version that answers, and runs it.
    max_message_bytes: The size of a response at most.
    """

    def __init__(self, plane: DataPlane, max_message_bytes: int) -> None:
        self._plane = plane
        self._limit = max_message_bytes

    async def read(self, data: bytes | bytearray, parsed: object = None) -> InferMessage:
        """Read a message, on the codec thread where that may take long.

        parsed: What it was parsed to on its way, which is not done again; default: it was not.

        Raises InvalidInput, NotReady or Overloaded.
        """
        if isinstance(parsed, ModelInferRequest):
            return InferMessage.of(parsed)
        read = read_at_once(data)
        if read is not None:
            return read
        self._plane.begin_reading()
        try:
            return await _on_thread(codec_thread.first_stage, read_whole, data)
        finally:
            self._plane.end_reading()

    async def infer(
        self,
        read: InferMessage,
        remaining: Callable[[], float | None],
        metadata: Callable[[], CallMetadata] = tuple,
        models: frozenset[str] | None = None,
        *,
        peer: Callable[[], str] = str,
        hold: MemoryHold,
        trace: Trace | None = None,
        priority: int = 0,
        streamed: bool = False,
    ) -> Sequence[Part]:
        """Serve one request. Where the task is cancelled, the request leaves its batch.

        read: The request.
        remaining: Returns the seconds until the call's deadline; None where it has none.
        metadata: Returns the call's metadata, which may hold a sticky key; default none.
        models: The models that the caller may see; default None: all of them.
        peer: Returns what tells the call's connection from others; default: nothing does.
        hold: Takes what the tensors need, beside the message.
        trace: Is told of the lease; default None: nobody is.
        priority: The caller's; default 0.
        streamed: Whether the response is one of a stream's.

        Raises any CohortError.
        """
        message = read.message
        model, plane = message.model_name or None, self._plane.seen_by(models, priority)
        try:
            request = read_request(read)
        except CohortError as error:
            plane.refused(model, error)
            raise

        def key_of(sticky: Sticky | None) -> str | None:
            if sticky is None:
                return peer()
            return sticky_key(sticky, partial(find_metadata, metadata()), request.parameters)

        def encode(outputs: Outputs) -> Sequence[Part]:
            response = inference.respond(lease, outputs)
            return self._serialize(*write_response(response, typed=typed), streamed=streamed)

        pick = partial(plane.pick, model, message.model_version or None, key_of=key_of)
        wanted = request.timeout
        try:
            lease = pick()
        except NotLoaded as error:
            lease, wanted = await plane.pick_loaded(error, pick, wanted)
        if trace is not None:
            trace.lease = lease
        try:
            inference = Inference(request)
            large = inference.decode_work(lease) > LARGE_BYTES
            if large:
                lease.check_room()
            arrays = await _do(large, inference.decode, lease)
            if hold.size or large:
                hold.set(max(hold.size, count_bytes(arrays.values())))
            timeout = _smaller(wanted, remaining())
            outputs = await lease.infer(arrays, timeout=timeout)
            typed = request.parameters.get("binary_data_output") is False
            large = inference.is_large(outputs, copied=lambda one: typed or not is_own_view(one))
            if hold.size or large:
                hold.set(count_bytes(outputs))
            response = await _do(large, encode, outputs)
        except CancelledError:
            left = remaining()
            late = left is not None and left <= 0
            lease.close(DeadlineExceeded(lease.seconds) if late else Cancelled("the caller left"))
            raise
        except BaseException as error:
            lease.close(error)
            raise
        lease.close()
        return response

    def _serialize(
        self, message: ModelInferResponse, tail: Sequence[Part], *, streamed: bool
    ) -> Sequence[Part]:
        """A response with its tensors. Raises TooLarge."""
        if streamed:  # Triton's mark of a request's last response; here each has one.
            message.parameters["triton_final_response"].bool_param = True
        head = message.SerializeToString()
        size = len(head) + sum(map(len, tail))
        if size > self._limit:
            raise TooLarge(
                f"the response has {size} bytes, and this server sends {self._limit} at most: "
                "request fewer rows or outputs"
            )
        if streamed:
            return delimited(_INFER_RESPONSE, head, *tail)
        return [head, *tail]


async def _do(large: bool, work: Callable[[A], T], argument: A) -> T:
    return await _on_thread(codec_thread.later_stage, work, argument) if large else work(argument)


async def _on_thread(executor: Executor, work: Callable[[A], T], argument: A) -> T:
    return await get_running_loop().run_in_executor(executor, work, argument)


def _smaller(timeout: float | None, remaining: float | None) -> float | None:
    return min([limit for limit in (timeout, remaining) if limit is not None], default=None)
