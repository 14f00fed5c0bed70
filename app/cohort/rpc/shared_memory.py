"""Shared memory regions over gRPC: register, unregister and status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from cohort.errors import InvalidInput
from cohort.open_inference import NO_CUDA, Regions
from cohort.rpc import inference_pb2 as messages
from cohort.rpc.calls import RpcCall


class SharedMemoryCalls:
    """The handler of calls for system shared memory; CUDA shared memory is not supported.

    regions: The callers' registered regions.
    """

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def calls(self) -> Iterator[tuple[str, Any, Callable[[Any, RpcCall], Awaitable[Any]]]]:
        """Yield each method's name, its request message and its handler."""
        yield "SystemSharedMemoryStatus", messages.SystemSharedMemoryStatusRequest, self.status
        yield (
            "SystemSharedMemoryRegister",
            messages.SystemSharedMemoryRegisterRequest,
            self.register,
        )
        yield (
            "SystemSharedMemoryUnregister",
            messages.SystemSharedMemoryUnregisterRequest,
            self.unregister,
        )
        yield "CudaSharedMemoryStatus", messages.CudaSharedMemoryStatusRequest, self.cuda_status
        yield (
            "CudaSharedMemoryRegister",
            messages.CudaSharedMemoryRegisterRequest,
            self.register_cuda,
        )
        yield (
            "CudaSharedMemoryUnregister",
            messages.CudaSharedMemoryUnregisterRequest,
            self.unregister_cuda,
        )

    async def status(
        self, request: messages.SystemSharedMemoryStatusRequest, call: RpcCall
    ) -> messages.SystemSharedMemoryStatusResponse:
        """Describe a caller's region, or all its regions. Raises NotFound."""
        kind = messages.SystemSharedMemoryStatusResponse.RegionStatus
        found = self._regions.status(_owner(call), request.name)
        regions = {one["name"]: kind(**one) for one in found}
        return messages.SystemSharedMemoryStatusResponse(regions=regions)

    async def register(
        self, request: messages.SystemSharedMemoryRegisterRequest, call: RpcCall
    ) -> messages.SystemSharedMemoryRegisterResponse:
        """Register a region. Raises Forbidden or InvalidInput."""
        self._regions.register(
            _owner(call),
            request.name,
            request.key,
            offset=request.offset,
            size=request.byte_size,
            admin=call.caller is not None and call.caller.admin,
        )
        return messages.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: messages.SystemSharedMemoryUnregisterRequest, call: RpcCall
    ) -> messages.SystemSharedMemoryUnregisterResponse:
        """Unregister a caller's region, or all its regions."""
        self._regions.unregister(_owner(call), request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(
        self, request: messages.CudaSharedMemoryStatusRequest, call: RpcCall
    ) -> messages.CudaSharedMemoryStatusResponse:
        """Return an empty list: CUDA shared memory is not supported."""
        return messages.CudaSharedMemoryStatusResponse()

    async def register_cuda(
        self, request: messages.CudaSharedMemoryRegisterRequest, call: RpcCall
    ) -> messages.CudaSharedMemoryRegisterResponse:
        """Raise InvalidInput: CUDA shared memory is not supported."""
        raise InvalidInput(NO_CUDA)

    async def unregister_cuda(
        self, request: messages.CudaSharedMemoryUnregisterRequest, call: RpcCall
    ) -> messages.CudaSharedMemoryUnregisterResponse:
        """Do nothing: no such regions exist. Triton's clients call this first."""
        return messages.CudaSharedMemoryUnregisterResponse()


def _owner(call: RpcCall) -> str:
    return "" if call.caller is None else call.caller.name
