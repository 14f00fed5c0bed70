"""One inference message, as the data plane's `Call`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from cohort.codec import is_own_view
from cohort.errors import TooLarge
from cohort.http2.send_queue import Part
from cohort.open_inference import NO_REGIONS, Inference, Parameters, Regions
from cohort.rpc.contents import read_request, write_response
from cohort.rpc.inference_pb2 import ModelStreamInferResponse
from cohort.rpc.wire import InferMessage, delimited
from cohort.serving import Lease, Outputs
from cohort.tensors import Arrays

Message = Sequence[Part]
"""A message in parts."""

INFER_RESPONSE = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


class MessageCall:
    """A request message, as the data plane's `Call`.

    read: The message. Raises InvalidInput.
    limit: Maximum size of a response, in bytes.
    streamed: True to write the response as a message of a stream.
    regions: The callers' shared memory regions; default: shared memory is off.

    id: The request's id; "" if it is absent.
    typed: True if the caller asked for typed tensors instead of raw ones.
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
        self.id = request.id
        self.typed = request.parameters.get("binary_data_output") is False
        self._limit = limit
        self._streamed = streamed

    def decode_work(self, lease: Lease) -> int:
        """Return the cost of `decode`, as a size of JSON that takes the same time."""
        return self._inference.decode_work(lease)

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays of the message's tensors. Raises InvalidInput."""
        return self._inference.decode(lease)

    def take_parameters(self, names: Collection[str]) -> Parameters:
        """Return all parameters, also those that are inputs with these names."""
        return {**self._inference.take_parameters(names), **self.parameters}

    def output_of(self, lease: Lease) -> str:
        """Return the name of the only output that the request may ask for. Raises InvalidInput."""
        wanted = self._inference.request.outputs
        positions = lease.select(None if wanted is None else [one.name for one in wanted])
        return lease.outputs[positions[0]].name

    def is_large(self, outputs: Outputs) -> bool:
        """Return True if `encode` takes long; tensors that are sent without a copy do not."""
        typed = self.typed
        return self._inference.is_large(outputs, lambda one: typed or not is_own_view(one))

    def encode(self, lease: Lease, outputs: Outputs) -> Message:
        """Write the response, in parts. Raises TooLarge."""
        response = self._inference.respond(lease, outputs)
        message, tail = write_response(
            response, typed=self.typed, check=partial(lease.check_time, self.timeout)
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
            return delimited(INFER_RESPONSE, head, *tail)
        return [head, *tail]
