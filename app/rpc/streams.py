"""ModelStreamInfer: many requests on one call, with their responses in the same order."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress

import grpc
from grpc import StatusCode

from app.data_plane import SMALL_BYTES, MemoryHold
from app.errors import NotReady
from app.refusals import known_error
from app.rpc.calls import CallerGate, Handler, RpcCall, begin_call, left, refuse
from app.rpc.errors import details_of
from app.rpc.inference_pb2 import ModelStreamInferResponse
from app.rpc.tracing import Trace
from app.rpc.transfers import Context, Transfers
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
    transfers: Receives requests and writes responses.
    """

    def __init__(
        self,
        method: str,
        read: ReadMessage,
        infer: Infer,
        *,
        gate: CallerGate,
        transfers: Transfers,
    ) -> None:
        self._method = method
        self._read = read
        self._infer = infer
        self._gate = gate
        self._transfers = transfers
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Read nothing more."""
        self._closed.set()

    def handler(self) -> tuple[str, Handler]:
        """For gRPC, under its name."""
        return self._method, grpc.stream_stream_rpc_method_handler(self._serve)

    async def _serve(self, requests: object, context: Context) -> None:
        del requests  # received by `transfers`
        trace = begin_call(context, self._transfers, self._method)
        try:
            self._gate.check(context)
            with ExitStack() as holds:
                await self._answer_all(context, trace, holds)
        except Exception as error:  # noqa: BLE001 - told and logged
            inner = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            await refuse(context, inner, trace)
        if self._closed.is_set():
            await refuse(context, NotReady("the server is shutting down"), trace)

    async def _answer_all(self, context: Context, trace: Trace, holds: ExitStack) -> None:
        responses: asyncio.Queue[tuple[asyncio.Task[bytes], MemoryHold] | None] = asyncio.Queue()
        places: asyncio.Queue[MemoryHold] = asyncio.Queue()
        for _ in range(IN_FLIGHT):
            places.put_nowait(holds.enter_context(self._transfers.memory.hold()))
        # The group ends with the call: a caller who leaves takes all its requests with it.
        async with asyncio.TaskGroup() as tasks:

            async def read() -> None:
                hold = await places.get()
                while (data := await self._transfers.receive(context)) is not None:
                    task = tasks.create_task(self._one(data, context, trace.of_message(), hold))
                    responses.put_nowait((task, hold))
                    hold = await places.get()

            reading = tasks.create_task(self._until_closed(read()))
            reading.add_done_callback(lambda _: responses.put_nowait(None))
            while (next_one := await responses.get()) is not None:
                task, hold = next_one
                await self._transfers.write(context, await task)
                hold.set(0)
                places.put_nowait(hold)

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

    async def _one(self, data: bytes, context: Context, trace: Trace, hold: MemoryHold) -> bytes:
        """One response, which `hold` goes on holding; a request that fails ends no stream."""
        response = ModelStreamInferResponse()
        try:
            request = await self._read(await self._transfers.unpack(data, hold))
            response.infer_response.id = request.message.id
            with self._gate.enter(context, trace, hold) as call:
                answer = await self._infer(request, call)
            trace.end(StatusCode.OK, len(answer))
        except CancelledError:
            trace.end(left(context))
            raise
        except Exception as error:  # noqa: BLE001 - told and logged
            ours = known_error(error)
            trace.refuse(ours)
            response.error_message = f"{ours.code}: {details_of(ours)}"
            # It knows this frame, and would keep itself and the request until garbage is collected.
            del ours
            answer = response.SerializeToString()
        hold.set(len(answer) if len(answer) > SMALL_BYTES else 0)
        return answer
