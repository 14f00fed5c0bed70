"""Inference calls, from request message to response message."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from collections.abc import Sequence
from functools import partial

from cohort.codec import is_own_view
from cohort.codec.codec_thread import codec_thread
from cohort.errors import DeadlineExceeded, TooLarge
from cohort.http2.send_queue import Part
from cohort.open_inference import NO_REGIONS, Inference, Regions
from cohort.rpc.calls import RpcCall, request_context
from cohort.rpc.contents import read_request, write_response
from cohort.rpc.inference_pb2 import ModelInferRequest, ModelStreamInferResponse
from cohort.rpc.wire import InferMessage, delimited, read_at_once, read_whole
from cohort.serving import AwaitedReply, DataPlane, Exchange, Lease, Outputs
from cohort.tensors import Arrays

_INFER_RESPONSE = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


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

    async def infer(
        self, read: InferMessage, call: RpcCall, *, streamed: bool = True
    ) -> Sequence[Part]:
        """Serve one request. If the task is cancelled, the request leaves its batch.

        read: The request.
        call: The request's call; its trace gets the lease.
        streamed: True to write the response as a message of a stream.

        Raises any CohortError.
        """
        context, reply = call.context, AwaitedReply[Sequence[Part]]()
        plane = self._plane.limited_to(call.models)
        exchange = Exchange(
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


class MessageCall:
    """A request message, as the data plane's `Call`.

    read: The message. Raises InvalidInput.
    limit: Maximum size of a response, in bytes.
    streamed: True to write the response as a message of a stream.
    regions: The callers' shared memory regions; default: shared memory is off.
    """

    def __init__(
        self, read: InferMessage, *, limit: int, streamed: bool, regions: Regions = NO_REGIONS
    ) -> None:
        request = read_request(read)
        self.model: str | None = read.message.model_name or None
        self.version: str | None = read.message.model_version or None
        self.label: str | None = None
        self.timeout = request.timeout
        self.parameters = request.parameters
        self._inference = Inference(request, regions)
        self.beside = request.beside
        self._limit = limit
        self._streamed = streamed
        self._typed = request.parameters.get("binary_data_output") is False

    def decode_work(self, lease: Lease) -> int:
        """Return the cost of `decode`, as a size of JSON that takes the same time."""
        return self._inference.decode_work(lease)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays of the message's tensors. Raises InvalidInput."""
        return self._inference.decode(lease)

    def is_large(self, outputs: Outputs) -> bool:
        """Return True if `encode` takes long; tensors that are sent without a copy do not."""
        typed = self._typed
        return self._inference.is_large(outputs, lambda one: typed or not is_own_view(one))

    def encode(self, lease: Lease, outputs: Outputs) -> Sequence[Part]:
        """Write the response, in parts. Raises TooLarge."""
        response = self._inference.respond(lease, outputs)
        message, tail = write_response(
            response, typed=self._typed, check=partial(lease.check_time, self.timeout)
        )
        if self._streamed:  # Triton's mark of a request's last response; here each has one.
            message.parameters["triton_final_response"].bool_param = True
        head = message.SerializeToString()
        size = len(head) + sum(map(len, tail))
        if size > self._limit:
            raise TooLarge(
                f"the response has {size} bytes, but this server sends at most {self._limit}: "
                "request fewer rows or outputs"
            )
        if self._streamed:
            return delimited(_INFER_RESPONSE, head, *tail)
        return [head, *tail]
