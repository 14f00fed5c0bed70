"""Requests to language models on a stream: many responses for one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from cohort.codec.sampling_parameters import PARAMETERS, read_flag, read_generation
from cohort.errors import InvalidInput
from cohort.generation import GenerationRequest, Piece, PreparedGeneration, Usage
from cohort.rpc.inference_pb2 import ModelInferResponse
from cohort.rpc.message_call import INFER_RESPONSE, Message, MessageCall
from cohort.rpc.wire import delimited
from cohort.serving import Call, Generation, Lease

SendMessage = Callable[[Message], None]


class StreamExchange(Generation[Message]):
    """A request on a stream, to a model of any kind.

    send: Receives the responses of a language model. Its reply gets only the end, as None.

    The other arguments are those of `Exchange`.
    """

    def __init__(self, send: SendMessage, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._send_message = send

    def _decode(self, lease: Lease) -> None:
        if lease.served.text is None:
            super(Generation, self)._decode(lease)
            return
        call = TextMessageCall(cast("MessageCall", self._call), lease)
        self._call = cast("Call[Message]", call)
        super()._decode(lease)

    def _send(self, part: Message | None) -> None:
        if part is not None:
            self._send_message(part)


class TextMessageCall:
    """A request to a language model. Implements `TextCall[Message]`.

    Each response has the new text. The last one has no text and the mark of the last response;
    with the parameter `stream` set to false, there is only one response.

    Triton's clients may send parameters as inputs.

    call: The request's message.
    lease: The request's lease.
    """

    def __init__(self, call: MessageCall, lease: Lease) -> None:
        self._call = call
        self.model, self.version, self.label = call.model, call.version, call.label
        self.timeout = call.timeout
        self.parameters: Mapping[str, object] = call.parameters
        self.size = call.decode_work(lease)
        self._output = ""
        self._finish = ""
        self._texts: list[str] = []
        self._streamed = True

    def request(self, lease: Lease) -> GenerationRequest:
        """See `TextCall`."""
        self._output = self._call.output_of(lease)
        given = self._call.take_parameters(PARAMETERS)
        self._streamed = read_flag("stream", given.get("stream"), default=True)
        text = self._read_text(lease)
        excluded = given.get("exclude_input_in_output")
        if not read_flag("exclude_input_in_output", excluded, default=True):
            self._texts.append(text)
        return read_generation(text, given, lease.text.sampling)

    def _read_text(self, lease: Lease) -> str:
        (name,) = (spec.name for spec in lease.inputs)
        texts = self._call.decode(lease)[name].ravel()
        if texts.size != 1:
            raise InvalidInput(
                f"{name} must have one element on a stream, got {texts.size}; send a request for "
                "each text",
                name,
            )
        text = texts[0]
        if not isinstance(text, str):
            raise InvalidInput(f"{name} is not UTF-8 text", name)
        return text

    def begin(self, lease: Lease, prepared: PreparedGeneration) -> Message | None:
        """Return None: the first response has text."""

    def encode_pieces(self, lease: Lease, pieces: Sequence[Piece]) -> Message | None:
        """Return a response with the new text; None if there is none."""
        for piece in pieces:
            self._texts.append(piece.text)
            self._finish = piece.finish or self._finish
        if not self._streamed:
            return None
        text = self._take()
        return self._response(lease, text, last=False) if text else None

    def encode_end(self, lease: Lease, usage: Usage) -> Message | None:
        """Return the last response."""
        return self._response(lease, self._take(), last=True)

    def _take(self) -> str:
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def _response(self, lease: Lease, text: str, *, last: bool) -> Message:
        message = ModelInferResponse(
            model_name=lease.model, model_version=lease.version, id=self._call.id
        )
        if lease.variant:
            message.parameters["variant"].string_param = lease.variant
        message.parameters["triton_final_response"].bool_param = last
        if last:
            message.parameters["finish_reason"].string_param = self._finish
        output = message.outputs.add(name=self._output, datatype="BYTES", shape=[1])
        data = text.encode()
        if self._call.typed:
            output.contents.bytes_contents.append(data)
        else:
            message.raw_output_contents.append(len(data).to_bytes(4, "little") + data)
        return delimited(INFER_RESPONSE, message.SerializeToString())
