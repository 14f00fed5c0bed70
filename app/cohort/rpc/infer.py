"""Inference calls, from request message to response message."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from collections.abc import Callable
from functools import partial

from cohort.codec.codec_thread import codec_thread
from cohort.errors import DeadlineExceeded
from cohort.open_inference import NO_REGIONS, Regions
from cohort.rpc.calls import RpcCall, request_context
from cohort.rpc.inference_pb2 import ModelInferRequest
from cohort.rpc.message_call import Message, MessageCall
from cohort.rpc.text_streams import SendMessage, StreamExchange
from cohort.rpc.wire import InferMessage, read_at_once, read_whole
from cohort.serving import AwaitedReply, DataPlane, Exchange


class InferCalls:
    """The handler of inference calls.

    plane: Chooses the version that answers, and runs it.
    max_message_bytes: Maximum size of a response.
    regions: The callers' shared memory regions; default: shared memory is off.
    """

    def __init__(
        self, plane: DataPlane, max_message_bytes: int, regions: Regions = NO_REGIONS
    ) -> None:
        self._regions = regions
        self._plane = plane
        self._limit = max_message_bytes

    async def read(self, data: bytes | bytearray, parsed: object = None) -> InferMessage:
        """Read a message, on the codec thread if that may take long.

        parsed: The message if it was parsed before; default None: parse it.

        Raises InvalidInput, NotReady or Overloaded.
        """
        if isinstance(parsed, ModelInferRequest):
            return InferMessage.of(parsed)
        read = read_at_once(data)
        if read is not None:
            return read
        self._plane.begin_reading()
        try:
            loop = get_running_loop()
            return await loop.run_in_executor(codec_thread.first_stage, read_whole, data)
        finally:
            self._plane.end_reading()

    async def infer(self, read: InferMessage, call: RpcCall) -> Message:
        """Serve the request of a call. If the task is cancelled, the request leaves its batch.

        read: The request.
        call: The request's call; its trace gets the lease.

        Raises any CohortError.
        """
        return await self._serve(Exchange[Message], read, call, streamed=False)

    async def infer_streamed(
        self, read: InferMessage, call: RpcCall, send: SendMessage
    ) -> Message | None:
        """Serve one request of a stream, as `infer` does.

        send: Receives the responses of a language model; then None is returned.
        """
        exchange = partial(StreamExchange, send)
        return await self._serve(exchange, read, call, streamed=True)

    async def _serve(
        self,
        make_exchange: Callable[..., Exchange[Message]],
        read: InferMessage,
        call: RpcCall,
        *,
        streamed: bool,
    ) -> Message:
        context, reply = call.context, AwaitedReply[Message]()
        plane = self._plane.limited_to(call.models)
        exchange = make_exchange(
            plane, request_context(context, call.caller, call.trace), reply, call.hold
        )
        make = partial(MessageCall, limit=self._limit, streamed=streamed, regions=self._regions)
        late = False
        try:
            exchange.read(make, read, model=read.message.model_name or None)
            return await reply.answer
        except CancelledError:
            left = context.time_remaining()
            late = left is not None and left <= 0
            raise
        finally:
            lease = call.trace.lease = exchange.lease
            exchange.leave(DeadlineExceeded(lease.seconds) if late and lease else None)
            reply.forget()
