"""`/v1/embeddings`: the output of an encoder, in OpenAI's form."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson

from cohort.codec import LARGE_BYTES, encode_tensor
from cohort.errors import InvalidInput, quoted
from cohort.http.calls import JSON, Encoded, Read, Route
from cohort.http.openai.completions import MAX_TOKEN_ID
from cohort.http.openai.fields import Fields, parse_object, wrong_type, wrong_value
from cohort.http.openai.options import MAX_NAME
from cohort.http.version_headers import version_headers
from cohort.serving import Headers, Lease, Outputs
from cohort.tensors import Array, Arrays, only_vectors

MAX_EMBEDDED = 2048
"""As in OpenAI's API."""

MAX_LENGTH_ASKED = 1 << 20
LONG_EMBEDDINGS_BYTES = 16 << 10

TOKEN_WORK = 32
"""Cost of tokenizing a character, as bytes of JSON that take the same time."""

SHORT_CHARACTERS = 128
"""Characters of a request that are tokenized on the event loop."""

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"

Ids = Sequence[int]
_WANTED = "a string, a list of strings, a list of token ids or a list of such lists"


class EmbeddingsCall:
    """A request for embeddings. Implements `Call[Encoded]`.

    body: The request's JSON.
    """

    version: str | None = None
    label: str | None = None
    timeout: float | None = None
    beside = 0

    def __init__(self, body: bytes) -> None:
        fields = Fields(parse_object(body))
        self.model = fields.text("model", MAX_NAME)
        self._texts, self._ids = _read_inputs(fields)
        self._base64 = fields.one_of("encoding_format", ("float", "base64")) == "base64"
        self._dimensions = fields.integer("dimensions", 1, MAX_LENGTH_ASKED)
        user = fields.text("user", MAX_NAME)
        self.parameters: Mapping[str, object] = {"user": user} if user else {}
        fields.check_rest({}, {})
        self._place = self._tokens = 0

    def decode_work(self, lease: Lease) -> int:
        """Return the cost of tokenizing the texts, or of reading the ids."""
        del lease
        size = sum(map(len, self._texts or self._ids))
        return 0 if size <= SHORT_CHARACTERS else max(TOKEN_WORK * size, LARGE_BYTES + 1)

    def decode(self, lease: Lease) -> Arrays:
        """Return the model's inputs. Raises InvalidInput."""
        place = only_vectors(lease.outputs)
        if place is None:
            raise _no_encoder(lease, "it does not have exactly one output [N, H] of floats")
        self._place = place
        shape = lease.outputs[place].shape
        self._check_dimensions(None if shape is None else shape[1])
        check = partial(lease.check_time, self.timeout)
        return self._text_arrays(lease, check) if self._texts else self._id_arrays(lease)

    def _text_arrays(self, lease: Lease, check: Callable[[], None]) -> Arrays:
        counter = lease.served.tokens
        if counter is None:
            raise _no_encoder(
                lease,
                "its input is not one text; set `inputs: {text: {tokenizer: …}}` in its config",
            )
        texts = np.empty(len(self._texts), np.object_)
        texts[:] = self._texts
        arrays: Arrays = {lease.inputs[0].name: texts}
        self._tokens = counter.count_tokens(arrays, check)
        return arrays

    def _id_arrays(self, lease: Lease) -> Arrays:
        specs = {spec.name: spec for spec in lease.inputs}
        known = specs.keys() <= {IDS, MASK, TYPES} and IDS in specs
        if not known or any(spec.datatype not in {"INT64", "INT32"} for spec in specs.values()):
            raise InvalidInput(
                f"model {quoted(lease.model)} does not accept token ids: send strings", "input"
            )
        lengths = np.array([len(ids) for ids in self._ids])
        if MASK not in specs and lengths.min() != lengths.max():
            raise InvalidInput(
                "the lists of 'input' must have the same length: this model has no attention_mask",
                "input",
            )
        self._tokens = int(lengths.sum())
        used = np.arange(lengths.max())[None, :] < lengths[:, None]
        ids = np.zeros(used.shape, np.int64)
        ids[used] = [token for row in self._ids for token in row]
        made = {IDS: ids, MASK: used, TYPES: np.zeros_like(ids)}
        return {name: made[name].astype(spec.dtype) for name, spec in specs.items()}

    def _check_dimensions(self, size: object) -> None:
        """Raise InvalidInput if the vectors have another length; `size` may not be known yet."""
        if isinstance(size, int) and self._dimensions not in {None, size}:
            raise wrong_value(
                "dimensions", f"must be {size}, the length of this model's vectors, or left out"
            )

    def is_large(self, outputs: Outputs) -> bool:
        """Return True if writing the vectors takes long."""
        return outputs[self._place].nbytes > LARGE_BYTES // 4

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the answer. Raises InferenceFailed for values that are not finite."""
        vectors = outputs[self._place]
        self._check_dimensions(vectors.shape[1])
        write = _as_base64 if self._base64 else partial(_as_floats, lease.outputs[self._place].name)
        data = [
            {"object": "embedding", "index": index, "embedding": write(vector)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": self._tokens, "total_tokens": self._tokens}
        answer = {"object": "list", "data": data, "model": lease.model, "usage": usage}
        headers = version_headers(lease.version, lease.variant, JSON["content-type"])
        return Encoded(orjson.dumps(answer), headers)


def embeddings_route() -> Route:
    """Return how bodies are read. Texts are tokenized, so only few of them are short."""

    def reader(headers: Headers) -> Read:
        del headers  # the route has checked them
        return EmbeddingsCall

    def is_long(headers: Headers, body: bytes) -> bool:
        del headers
        return len(body) > LONG_EMBEDDINGS_BYTES

    return Route(None, reader, takes_long=is_long, short_bytes=0)


def _read_inputs(fields: Fields) -> tuple[Sequence[str], Sequence[Ids]]:
    """Return the texts, or else the lists of token ids. Raises InvalidInput."""
    fields.required("input")
    given = fields.get("input")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        raise wrong_type("input", _WANTED, given)
    if given and given[0].__class__ is int:
        given = [given]
    if not given or "" in given or [] in given:
        raise wrong_value("input", "must not be empty, and no text or list in it may be")
    if len(given) > MAX_EMBEDDED:
        raise wrong_value("input", f"has {len(given)} elements, more than {MAX_EMBEDDED}")
    kind = given[0].__class__
    for number, one in enumerate(given):
        if one.__class__ is not kind or kind not in {str, list}:
            raise wrong_type(f"input[{number}]", _WANTED, one)
        if kind is list and not all(
            token.__class__ is int and 0 <= token <= MAX_TOKEN_ID for token in one
        ):
            raise wrong_value(f"input[{number}]", "must have token ids only: integers from 0")
    return (given, ()) if kind is str else ((), given)


def _no_encoder(lease: Lease, why: str) -> InvalidInput:
    return InvalidInput(f"model {quoted(lease.model)} cannot embed text: {why}", "model")


def _as_base64(vector: Array) -> str:
    return b64encode(vector.astype("<f4").tobytes()).decode()


def _as_floats(name: str, vector: Array) -> orjson.Fragment:
    """Return one vector as JSON: the interpreter's lock is free between two of them."""
    values: Any = encode_tensor(name, vector)
    return orjson.Fragment(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
