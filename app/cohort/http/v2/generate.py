"""`POST /v2/models/{model}/generate` and `generate_stream`, of Triton and of KServe.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/generate_rest.yaml
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from cohort.codec import parse_json
from cohort.codec.json_tensors import shown
from cohort.codec.sampling_parameters import check_names, read_flag, read_generation
from cohort.errors import CohortError, InvalidInput, quoted
from cohort.generation import (
    GenerationRequest,
    Piece,
    PreparedGeneration,
    TokenLogprob,
    Usage,
)
from cohort.http.calls import JSON, Encoded
from cohort.http.errors import body_of
from cohort.http.event_stream import EventPart, event
from cohort.http.v2.message import json_object, parameters_of, request_id
from cohort.open_inference import Parameters
from cohort.open_inference.parameters import read_timeout
from cohort.serving import Lease

_NOT_PARAMETERS = frozenset({"text_input", "parameters", "id"})

_END = "end_id"
_OTHERS = frozenset(
    {
        *("details", _END, "priority", "timeout", "user"),
        *("sequence_end", "sequence_id", "sequence_start"),
    }
)
"""Parameters of the protocol and of Triton, apart from those of sampling."""


class GenerateCall:
    """One request. Implements `TextCall[EventPart]`.

    body: The request's JSON.
    model, version: The names in the path; None: the path has no version.
    streamed: True if the answer is sent as events, unless the request sets `stream` to false.
    sticky: The parameter that keeps a caller on a variant; default "": there is none.
    """

    label: str | None = None

    def __init__(
        self, body: bytes, model: str, version: str | None, *, streamed: bool, sticky: str = ""
    ) -> None:
        document = json_object("the body", parse_json(body))
        self.model: str | None = model
        self.version = version
        self._text = _text(document.get("text_input"))
        self.parameters = parameters_in(document)
        check_names(self.parameters, {*_OTHERS, sticky})
        self.timeout = read_timeout(self.parameters)
        self.size = len(self._text)
        self._id = request_id(document.get("id"))
        self._details = self._flag("details", default=False)
        stream = self._flag("stream", default=True)
        self._echoed = "" if self._flag("exclude_input_in_output", default=True) else self._text
        self._streamed = streamed and stream
        self._events = streamed
        self._texts: list[str] = []
        self._tokens: list[dict[str, Any]] = []
        self._finish = ""
        self._stops = False  # True if the request has stop strings

    def _flag(self, name: str, *, default: bool) -> bool:
        return read_flag(name, self.parameters.get(name), default=default)

    def request(self, lease: Lease) -> GenerationRequest:
        """See `TextCall`."""
        self._check_end([str(one) for one in lease.text.end_tokens])
        logprobs = 0 if self._details else None
        return read_generation(self._text, self.parameters, lease.text.sampling, logprobs=logprobs)

    def _check_end(self, known: Sequence[str]) -> None:
        end = self.parameters.get(_END)
        if end is not None and not (isinstance(end, int | str) and str(end) in known):
            tokens = " or ".join(known) or "left out"
            raise InvalidInput(f"{_END} must be {tokens} for this model, got {shown(end)}", _END)

    def begin(self, lease: Lease, prepared: PreparedGeneration) -> EventPart | None:
        """Return None: the status is sent with the first event."""
        del lease
        self._stops = bool(prepared.request.stop)
        if self._echoed:
            self._texts.append(self._echoed)
        return None

    def encode_pieces(self, lease: Lease, pieces: Sequence[Piece]) -> EventPart | None:
        """Return an event with the new text; None if there is none, or the answer is whole."""
        for piece in pieces:
            self._texts.append(piece.text)
            self._tokens += map(_token, piece.logprobs)
            self._finish = piece.finish or self._finish
        if not self._streamed or not (any(self._texts) or self._tokens or self._finish):
            return None
        document = {**self._answer(lease), "done": bool(self._finish)}
        self._texts, self._tokens = [], []
        return event(orjson.dumps(document))

    def encode_end(self, lease: Lease, usage: Usage) -> EventPart | None:
        """Return the whole answer, unless it was sent as events."""
        del usage
        if self._streamed:
            return None
        document = self._answer(lease)
        if self._events:
            return event(orjson.dumps({**document, "done": True}))
        return Encoded(orjson.dumps(document), JSON)

    def _answer(self, lease: Lease) -> dict[str, Any]:
        answer: dict[str, Any] = {"model_name": lease.model, "model_version": lease.version}
        if self._id:
            answer["id"] = self._id
        if lease.variant:
            answer["parameters"] = {"variant": lease.variant}
        answer["text_output"] = "".join(self._texts)
        if self._details:
            answer["details"] = self._make_details()
        return answer

    def _make_details(self) -> dict[str, Any]:
        details: dict[str, Any] = {"logprobs": self._tokens}
        if self._streamed and self._tokens:
            details["token"] = self._tokens[-1]
        if self._finish:
            # A request with stop strings may also end at the model's end token.
            by_stop = "stop_sequence" if self._stops else "eos_token"
            details["finish_reason"] = "length" if self._finish == "length" else by_stop
        return details


def error_event(error: CohortError) -> bytes:
    """Return the event that ends a stream with an error."""
    return event(body_of(error))


def parameters_in(document: Mapping[str, Any]) -> Parameters:
    """Return the parameters in `parameters`, and those next to it.

    Raises InvalidInput if a parameter has two values.
    """
    found = dict(parameters_of("parameters", document))
    for name, value in document.items():
        if name in _NOT_PARAMETERS or value is None:
            continue
        if found.get(name) not in (None, value):
            raise InvalidInput(
                f"{quoted(name)[1:-1]} has two values: in parameters and next to it", name
            )
        found[name] = value
    return found


def _text(value: object) -> str:
    if value is None:
        raise InvalidInput("text_input is missing", "text_input")
    if not isinstance(value, str):
        raise InvalidInput(f"text_input must be a string, got {shown(value)}", "text_input")
    return value


def _token(token: TokenLogprob) -> dict[str, Any]:
    """Return a token in KServe's form; a special token has no text."""
    special = not token.raw
    return {"id": token.token, "text": token.text, "logprob": token.logprob, "special": special}
