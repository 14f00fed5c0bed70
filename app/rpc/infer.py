"""Inference calls, from request message to response message."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from functools import partial

from app.data_plane import DataPlane, Sticky, sticky_key
from app.errors import Cancelled, CohortError, DeadlineExceeded, TooLarge
from app.open_inference import Inference
from app.rpc.calls import CallMetadata, find_metadata
from app.rpc.contents import read_request, write_response
from app.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse


class InferCalls:
    """Serves inference calls.

    plane: Picks the version that answers, and runs it.
    max_message_bytes: The size of a response at most.
    """

    def __init__(self, plane: DataPlane, max_message_bytes: int) -> None:
        self._plane = plane
        self._limit = max_message_bytes

    async def infer(
        self,
        message: ModelInferRequest,
        remaining: Callable[[], float | None],
        metadata: Callable[[], CallMetadata] = tuple,
        models: frozenset[str] | None = None,
    ) -> ModelInferResponse:
        """Serve one request. Where the task is cancelled, the request leaves its batch.

        message: The request.
        remaining: Returns the seconds until the call's deadline; None where it has none.
        metadata: Returns the call's metadata, which may hold a sticky key; default none.
        models: The models that the caller may see; default None: all of them.

        Raises any CohortError.
        """
        model, plane = message.model_name or None, self._plane.seen_by(models)
        try:
            request = read_request(message)
        except CohortError as error:
            plane.refused(model, error)
            raise

        def key_of(sticky: Sticky) -> str | None:
            return sticky_key(sticky, partial(find_metadata, metadata()), request.parameters)

        lease = plane.pick(model, message.model_version or None, key_of=key_of)
        try:
            inference = Inference(request)
            arrays = inference.decode(lease)
            timeout = _smaller(request.timeout, remaining())
            outputs = await lease.infer(arrays, timeout=timeout)
            typed = bool(message.inputs) and not message.raw_input_contents
            response = write_response(inference.respond(lease, outputs), typed=typed)
            self._check_size(response)
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

    def _check_size(self, response: ModelInferResponse) -> None:
        if (size := response.ByteSize()) > self._limit:
            raise TooLarge(
                f"the response has {size} bytes, and this server sends {self._limit} at most: "
                "request fewer rows or outputs"
            )


def _smaller(timeout: float | None, remaining: float | None) -> float | None:
    return min([limit for limit in (timeout, remaining) if limit is not None], default=None)
