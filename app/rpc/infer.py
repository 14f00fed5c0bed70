"""One inference, from message to message, by the way of every face."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable

from app.codec import classify
from app.data_plane import DataPlane, Lease, Outputs, Sticky
from app.errors import Cancelled, DeadlineExceeded, InvalidInput, TooLarge, quoted
from app.rpc.calls import CallMetadata, find_metadata
from app.rpc.contents import NamedTensor, read_inputs, write_outputs
from app.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse
from app.rpc.parameters import text_of, timeout_of, whole

RequestedOutput = ModelInferRequest.InferRequestedOutputTensor


class Inference:
    """Answers requests from `plane`; `limit` is the largest answer in bytes."""

    def __init__(self, plane: DataPlane, limit: int) -> None:
        self._plane = plane
        self._limit = limit

    async def answer(
        self,
        request: ModelInferRequest,
        remaining: Callable[[], float | None],
        metadata: Callable[[], CallMetadata] = tuple,
    ) -> ModelInferResponse:
        """Answer one request. `remaining()` gives the seconds until the call's deadline.

        `metadata()` gives the call's pairs, where a rollout may look for its sticky key.

        Raises what a caller should hear. Where the task is cancelled, the caller is gone, and the
        request leaves its batch.
        """
        plane = self._plane

        def key_of(sticky: Sticky) -> str | None:
            if sticky.header:
                return find_metadata(metadata(), sticky.header)
            return text_of(request.parameters, sticky.parameter)

        lease = plane.pick(request.model_name or None, request.model_version or None, key_of=key_of)
        try:
            arrays = read_inputs(request, lease.inputs)
            names = [output.name for output in request.outputs]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InvalidInput(f"output {quoted(twice)} is asked for twice")
            positions = lease.select(names or None)
            classes = [_classes(output) for output in request.outputs] or [0] * len(positions)
            wanted = list(zip(positions, classes, strict=True))
            timeout = timeout_of(request.parameters, remaining())
            outputs = await lease.infer(arrays, timeout=timeout)
            response = self._encode(request, lease, outputs, wanted)
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

    def _encode(
        self,
        request: ModelInferRequest,
        lease: Lease,
        outputs: Outputs,
        wanted: list[tuple[int, int]],
    ) -> ModelInferResponse:
        response = ModelInferResponse(
            model_name=lease.model, model_version=lease.version, id=request.id
        )
        if lease.variant:
            response.parameters["variant"].string_param = lease.variant
        tensors = []
        for position, classes in wanted:
            spec, array = lease.outputs[position], outputs[position]
            if classes:
                best = classify(spec, array, classes, lease.labels)
                tensors.append(NamedTensor(spec.name, "BYTES", best))
            else:
                tensors.append(NamedTensor(spec.name, spec.datatype, array))
        typed = bool(request.inputs) and not request.raw_input_contents
        write_outputs(response, tensors, typed=typed)
        if (size := response.ByteSize()) > self._limit:
            raise TooLarge(
                f"the answer has {size} bytes, and this server sends {self._limit} at most: ask "
                "for fewer rows or outputs"
            )
        return response


def _classes(output: RequestedOutput) -> int:
    """How many best classes are asked for in place of the values; 0: the values."""
    if "shared_memory_region" in output.parameters:
        raise InvalidInput(
            f"output {quoted(output.name)} is to go to shared memory, which this server does not do"
        )
    return whole(output.parameters, "classification") or 0
