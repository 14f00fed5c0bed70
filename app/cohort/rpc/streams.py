"""ModelStreamInfer: many requests on one call, with their responses in the same order.

A request to a language model has many responses. They are sent at once if the request has an
id. Otherwise they wait for the responses of the requests before it.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from cohort.codec import MAX_ROWS_BODY_BYTES
from cohort.connections.memory import SMALL_BYTES, MemoryHold
from cohort.errors import CohortError, DeadlineExceeded, InvalidInput, NotReady, forget_locals
from cohort.http2 import SHUTTING_DOWN, SentMessage, Stream
from cohort.observability.refusals import known_error
from cohort.rpc.calls import CallerGate, RpcCall, begin_call, left, parse_message
from cohort.rpc.context import Arrival, StreamContext
from cohort.rpc.errors import details_of, grpc_status, metadata_of
from cohort.rpc.inference_pb2 import ModelInferRequest, ModelStreamInferResponse
from cohort.rpc.message_call import Message
from cohort.rpc.small_messages import SmallMessage, SmallMessages
from cohort.rpc.status import StatusCode
from cohort.rpc.text_streams import SendMessage
from cohort.rpc.tracing import Trace
from cohort.rpc.transfers import Transfers, message_too_large
from cohort.rpc.wire import InferMessage
from cohort.serving import Group

IN_FLIGHT = 64
"""Requests of one stream that may be in flight; the next is read when the oldest is answered."""

_METHOD = "ModelStreamInfer"

ReadMessage = Callable[[bytes | bytearray, object], Awaitable[InferMessage]]
Infer = Callable[[InferMessage, RpcCall, SendMessage], Awaitable[Message | None]]


@dataclass(frozen=True, slots=True)
class StreamService:
    """The collaborators of streams.

    read: Reads a request.
    infer: Returns a request's ModelStreamInferResponse; None if it has sent several of them.
    gate: Checks the callers of requests.
    transfers: Limits the memory of requests.
    small: Passes small requests to the coalescer.
    """

    read: ReadMessage
    infer: Infer
    gate: CallerGate
    transfers: Transfers
    small: SmallMessages


class InferStream(StreamContext):
    """A stream of requests until its end or `close`; it finishes the requests it has read.

    stream: The call's HTTP/2 stream.
    service: The collaborators that serve it.
    """

    def __init__(self, stream: Stream, service: StreamService) -> None:
        super().__init__(stream, service.transfers.most(anyone=False))
        self.service = service
        self._pending: deque[StreamRequest] = deque()
        self._texts: list[StreamRequest] = []  # with many responses, in `_pending` or not
        self._room = IN_FLIGHT
        self._arrival: Arrival | None = None
        self._closed = ""  # why it reads no more
        self._flush_soon = False
        self._loop = asyncio.get_running_loop()
        self.trace = begin_call(self, service.transfers, _METHOD)
        self._timer = None
        if self.deadline is not None:
            seconds = max(0.0, self.deadline - monotonic())
            self._timer = self._loop.call_later(seconds, self._time_over, seconds)

    def start(self) -> None:
        """Begin, or refuse the call if its caller is not known."""
        try:
            self.service.gate.check(self)
        except CohortError as error:
            self.refuse(error)

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """Stop reading; answer the requests already read, and then end the call."""
        self._closed = reason
        self._end_if_over()

    # -- for its stream

    @property
    def waits_for_caller(self) -> bool:
        """Return True if no request is in flight and no response waits to be sent."""
        return not (self._pending or self._texts or self.stream.waits)

    def arrived(self) -> None:
        """Read complete messages, or the end of the caller's stream."""
        stream = self.stream
        while len(self._pending) < self._room and not (stream.waits or self._closed):
            message = stream.take()
            if message is None:
                break
            self._arrival = None
            request = StreamRequest(self)
            self._pending.append(request)
            request.begin(message)
        self._end_if_over()

    def refuse(self, error: CohortError) -> None:
        """End the call, with all requests in flight, with this error."""
        if self.stream.closed:
            return
        ours = known_error(error)
        self.trace.refuse(ours)
        self.end(grpc_status(ours), details_of(ours), metadata_of(ours, self.trace.request_id))
        self._leave_all()

    def too_large(self, size: int) -> None:
        """Refuse a message that is too large."""
        self.refuse(message_too_large(size, self.most_bytes))

    def drained(self) -> None:
        """Send further responses: the send queue is empty."""
        self.flush_soon()

    def gone(self) -> None:
        """End all requests: the caller has disconnected."""
        self._leave_all()

    # -- for the server

    def tick(self, now: float) -> None:
        """Refuse the call if a partly received message is late."""
        if len(self._pending) >= self._room or not self.stream.partial:
            self._arrival = None
            return
        if self._arrival is None:
            self._arrival = Arrival(self.stream.received, anyone=False)
        late = self._arrival.late(now, self.stream.received)
        if late is not None:
            self.refuse(late)

    def end_reading(self) -> None:
        """Refuse the call if a message is incomplete, because the server stops."""
        if self.stream.partial:
            self.refuse(NotReady("the server is stopping, and the message was not whole in time"))

    # -- for its requests

    def flush_soon(self) -> None:
        """Send the responses that are ready at the end of this event loop iteration."""
        if not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = False
        pending, stream = self._pending, self.stream
        if len(pending) > 1:
            stream.connection.out.gather()
        while pending and (answer := pending[0].answer) is not None and not stream.closed:
            stream.send(answer)
            pending.popleft().release()
        if self._texts:
            self._send_texts()
        if not stream.closed:
            self.arrived()

    def begin_text(self, request: StreamRequest, *, named: bool) -> None:
        """Begin the many responses of a request; `named` is True if it has an id."""
        self._texts.append(request)
        if named:
            self._pending.remove(request)
            self._room -= 1

    def _send_texts(self) -> None:
        """Send responses of language models, unless earlier messages still wait to be sent."""
        stream = self.stream
        for request in list(self._texts):
            listed = request in self._pending
            if stream.closed or stream.waits or (listed and request is not self._pending[0]):
                continue
            for message in request.take_messages():
                stream.send(message)
            if not request.ended:
                continue
            self._texts.remove(request)
            request.release()
            if listed:
                self._pending.popleft()
                self.flush_soon()
            else:
                self._room += 1

    def _end_if_over(self) -> None:
        if self._pending or self._texts or self.stream.closed:
            return
        if self._closed:
            self.refuse(NotReady(self._closed))
        elif self.stream.partial and self.stream.ended:
            self.refuse(InvalidInput("the call ends within a message"))
        elif self.stream.ended:
            self.end(StatusCode.OK)
            self.trace.end_span(StatusCode.OK)
            self._leave_all()

    def _time_over(self, seconds: float) -> None:
        self.refuse(DeadlineExceeded(seconds))

    def _leave_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, deque()
        texts, self._texts = self._texts, []
        for request in dict.fromkeys((*pending, *texts)):
            request.leave_unanswered()
        self.trace.end_span(StatusCode.CANCELLED)  # no effect if it has ended


class StreamRequest(SmallMessage):
    """One request of a stream.

    answer: The response; None until it is ready, and for a language model.
    ended: True if the last of many responses is ready.
    """

    ended = False
    _messages: list[Message] | None = None  # the responses of a language model
    _waiting = 0  # their bytes

    def __init__(self, call: InferStream) -> None:
        self._stream = call
        self.answer: Message | None = None
        self._data = b""
        self._hold: MemoryHold | None = None
        self._task: asyncio.Task[None] | None = None
        self._alone = False
        if call.service.transfers.access_log is not None or call.trace.traced.span is not None:
            self.trace = call.trace.of_message()

    @property
    def call(self) -> InferStream:
        """Return the request's stream."""
        return self._stream

    def begin(self, message: SentMessage) -> None:
        """Start answering the request."""
        data, compressed = message
        if compressed or len(data) > MAX_ROWS_BODY_BYTES:
            self._serve(message)
        else:
            self._data = bytes(data)
            self.call.service.small.add(self, self._data, streamed=True)

    def take_messages(self) -> Sequence[Message]:
        """Return the responses of a language model that were not taken yet."""
        messages, self._messages, self._waiting = self._messages or (), [], 0
        if self._hold is not None:
            self._hold.set(0)
        return messages

    def release(self) -> None:
        """Release its memory: the response was sent."""
        if self._hold is not None:
            self._hold.set(0)

    def leave_unanswered(self) -> None:
        """Cancel the request: its caller has disconnected, or the call has ended."""
        self.leave()
        if self._task is not None:
            self._task.cancel()
        elif self.answer is None and self.trace is not None and not self._alone:
            self.trace.end(StatusCode.CANCELLED)
        self.release()

    # -- for the coalescer

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Serve it outside the coalescer, with the message parsed from the body."""
        self._serve(SentMessage(body, compressed=False), document)

    def succeed(self, body: bytes, headers: object, group: Group) -> None:
        """Answer with the message of a successful response."""
        del headers
        self.leave()
        if self.trace is not None:
            self.trace.end_shared(group, len(body))
        self._answer((body,))

    def fail(self, error: Exception) -> None:
        """Answer with an error; a failed request does not end its stream."""
        self.leave()
        trace = self.trace or self.call.trace.of_message()
        self._answer((_failure(error, trace, parse_message(ModelInferRequest, self._data).id),))

    def _answer(self, message: Message) -> None:
        self.answer = message
        self.call.flush_soon()

    # -- without the coalescer

    def _serve(self, message: SentMessage, parsed: object = None) -> None:
        self.response_complete = self._alone = True
        self._hold = self.call.service.transfers.memory.hold()
        trace = self.trace or self.call.trace.of_message()
        work = self._serve_alone(message, parsed, trace, self._hold)
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._over)

    def _over(self, _: object) -> None:
        self._task = None  # the task's error references this request and its message
        self.end_count()

    async def _serve_alone(
        self, message: SentMessage, parsed: object, trace: Trace, hold: MemoryHold
    ) -> None:
        call, service, id_ = self.call, self.call.service, ""
        sent = 0

        def send(message: Message) -> None:
            nonlocal sent
            size = sum(map(len, message))
            sent += size
            self._add(message, size, named=bool(id_))

        try:
            data = await service.transfers.unpack(call, message, hold)
            request = await service.read(data, parsed)
            id_ = request.message.id
            with service.gate.enter(call, trace, hold, self.caller) as entered:
                answer = await service.infer(request, entered, send)
            trace.end(StatusCode.OK, sent if answer is None else sum(map(len, answer)))
        except CancelledError:
            trace.end(left(call))
            raise
        except Exception as error:  # noqa: BLE001 - reported and logged
            answer = (_failure(error, trace, id_),)
            forget_locals(error)
        if call.stream.closed:
            return
        if self._messages is not None:
            self._messages += [] if answer is None else [answer]
            self.ended = True
            call.flush_soon()
        elif answer is not None:
            size = sum(map(len, answer))
            hold.set(size if size > SMALL_BYTES else 0)
            self._answer(answer)

    def _add(self, message: Message, size: int, *, named: bool) -> None:
        """Queue one of many responses. Raises Overloaded if too many bytes wait."""
        hold, call = self._hold, self.call
        if call.stream.closed or hold is None:
            return
        if self._messages is None:
            self._messages = []
            hold.set(0)
            call.begin_text(self, named=named)
        self._waiting += size
        if self._waiting > SMALL_BYTES:
            hold.add_up_to(self._waiting)
        self._messages.append(message)
        call.flush_soon()


def _failure(error: Exception, trace: Trace, id_: str) -> bytes:
    ours = known_error(error)
    trace.refuse(ours)
    response = ModelStreamInferResponse(error_message=f"{ours.code}: {details_of(ours)}")
    response.infer_response.id = id_
    return response.SerializeToString()
