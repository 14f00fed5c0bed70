"""ModelStreamInfer: many requests on one call, with their responses in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import grpc

from app.data_plane import SMALL_BYTES, MemoryBudget
from app.errors import NotReady
from app.refusals import known_error
from app.request_ids import REQUEST_ID, new_request_id
from app.rpc.calls import CallerGate, Context, Handler, RpcCall, refuse, sent_id
from app.rpc.errors import details_of, log_grpc_refusal
from app.rpc.inference_pb2 import ModelStreamInferResponse
from app.rpc.wire import InferMessage

IN_FLIGHT = 64
"""Requests of one stream that may be in flight; the next is read when the oldest is answered."""

ReadMessage = Callable[[bytes], Awaitable[InferMessage]]
Infer = Callable[[InferMessage, RpcCall], Awaitable[bytes]]


class Streams:
    """Serves streams until `close`: then each finishes what it has read and ends.

    method: The name of the call.
    read: Reads a request.
    infer: Gives the bytes of the ModelStreamInferResponse to a request.
    gate: Lets requests in.
    memory: What requests may hold of the process's memory.
    """

    def __init__(
        self,
        method: str,
        read: ReadMessage,
        infer: Infer,
        *,
        gate: CallerGate,
        memory: MemoryBudget,
    ) -> None:
        self._method = method
        self._read = read
        self._infer = infer
        self._gate = gate
        self._memory = memory
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Read nothing more."""
        self._closed.set()

    def handler(self) -> tuple[str, Handler]:
        """For gRPC, under its name."""
        return self._method, grpc.stream_stream_rpc_method_handler(self._serve)

    async def _serve(self, requests: AsyncIterator[bytes], context: Context) -> None:
        if request_id := sent_id(context):
            context.set_trailing_metadata(((REQUEST_ID, request_id),))
        responses: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        slots_left = asyncio.Semaphore(IN_FLIGHT)
        try:
            self._gate.check(context)
            # The group ends with the call: a caller who leaves takes all its requests with it.
            async with asyncio.TaskGroup() as tasks:

                async def read() -> None:
                    await slots_left.acquire()
                    async for data in requests:
                        await responses.put(tasks.create_task(self._one(data, context)))
                        await slots_left.acquire()

                reading = tasks.create_task(self._until_closed(read()))
                reading.add_done_callback(lambda _: responses.put_nowait(None))
                while (task := await responses.get()) is not None:
                    await context.write(await task)
                    slots_left.release()
        except Exception as error:  # noqa: BLE001 - told and logged
            await refuse(context, error, self._method)
        if self._closed.is_set():
            await refuse(context, NotReady("the server is shutting down"), self._method)

    async def _until_closed(self, reading: Awaitable[None]) -> None:
        read, closed = asyncio.ensure_future(reading), asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({read, closed}, return_when=asyncio.FIRST_COMPLETED)
            if read.done():
                read.result()
        finally:
            for task in (read, closed):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _one(self, data: bytes, context: Context) -> bytes:
        """One response; a request that fails does not end the stream."""
        response = ModelStreamInferResponse()
        try:
            with self._memory.hold() as hold:
                if len(data) > SMALL_BYTES:
                    hold.add(len(data))
                request = await self._read(data)
                response.infer_response.id = request.message.id
                with self._gate.enter(context) as call:
                    return await self._infer(request, call)
        except Exception as error:  # noqa: BLE001 - told and logged
            ours = known_error(error)
            request_id = sent_id(context) or new_request_id().decode()
            log_grpc_refusal(ours, self._method, request_id)
            response.error_message = f"{ours.code}: {details_of(ours)}"
            return response.SerializeToString()
