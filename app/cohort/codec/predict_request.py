"""The body of `POST /predict`: its options and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, Self

from simdjson import Array as JsonArray
from simdjson import Object as JsonObject

from cohort.codec import simdjson_reader
from cohort.codec.base64_json import decode_base64, is_base64, is_stream, read_stream
from cohort.codec.json_body import parse_json
from cohort.codec.json_tensors import from_any, pack_short, shown
from cohort.codec.long_json import CUT_FROM_BYTES, LISTS, few_of
from cohort.codec.long_tensors import from_json
from cohort.codec.other_forms import SIMPLE, other_form
from cohort.errors import InvalidInput, did_you_mean, quoted, quoted_names
from cohort.tensors import ANY, Array, Arrays, TensorSpec, check_names

Parameter = str | int | float | bool

MAX_ID = 4096
"""Maximum characters of a request's id, which the response repeats."""

_KEYS = (
    "model", "version", "inputs", "input", "rows", "outputs", "id", "timeout_ms", "parameters"
)  # fmt: skip


class PredictRequest:
    """A prediction request. `inputs` are JSON values until `decode_inputs` converts them.

    `single` is True for the form with `input`: one array, without the name of the model's input.
    `rows` is a list of objects, for `cohort.codec.tables`, in a body of `rows_bytes`; None if not
    given. `timeout` is in seconds.
    """

    model: str | None = None
    version: str | None = None
    outputs: list[str] | None = None
    id: str | None = None
    timeout: float | None = None
    rows: Any = None
    rows_bytes = 0
    parameters: Mapping[str, Parameter] = MappingProxyType({})

    def __init__(
        self,
        inputs: Mapping[str, Any],
        single: bool = False,
        booleans: bool = True,
        body: simdjson_reader.HeldDocument | None = None,
    ) -> None:
        self.inputs = inputs
        self.single = single
        self._booleans = booleans  # False if the inputs have no booleans
        self._held = body  # the document of a long body

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Read the body of `POST /predict`. Raises InvalidInput.

        If a key is repeated, the last value counts.
        """
        if (
            len(body) >= simdjson_reader.MIN_BODY_BYTES
            and (parsed := simdjson_reader.read_document(body)) is not None
        ):
            document, held = parsed
            return cls._read(document, booleans=True, held=held)
        return cls.from_document(parse_json(body), body)

    @classmethod
    def from_document(cls, document: object, body: bytes) -> Self:
        """Read a body already parsed to `document`. Raises InvalidInput."""
        # `true` and `false` contain an e; a typical body has no other e after its first list.
        # Searching the text takes a tenth of the time of checking every number.
        booleans = len(body) >= CUT_FROM_BYTES or body.find(b"e", body.find(b"[") + 1) >= 0
        request = cls._read(document, booleans=booleans, held=None)
        if request.rows is not None:
            request.rows_bytes = len(body)
        return request

    @classmethod
    def _read(
        cls, document: Any, *, booleans: bool, held: simdjson_reader.HeldDocument | None
    ) -> Self:
        if document.__class__ is not dict:
            hint = "; an array alone goes under 'input'" if document.__class__ is list else ""
            raise InvalidInput(f"the body must be a JSON object, got {shown(document)}{hint}")
        inputs = document.get("inputs")
        if inputs.__class__ is dict:
            request = cls(inputs, False, booleans, held)
            if len(document) > 1:
                _read_rest(request, document)
            return request
        if inputs is None and "input" in document:
            given = {"input": document["input"]}
            request = cls(given, True, booleans, held)
            if len(document) > 1:
                _read_rest(request, document)
            return request
        if inputs is None and "rows" in document:
            if document["rows"] is None:
                raise InvalidInput("'rows' must be a list of rows, got null")
            request = cls({}, False, booleans, held)
            request.rows = document["rows"]
            _read_rest(request, document)
            return request
        _check_keys(document)
        if inputs is None:
            raise InvalidInput("the body has neither 'inputs' nor 'input' nor 'rows'")
        inputs = simdjson_reader.plain(inputs)
        elsewhere = other_form({"inputs": inputs}, SIMPLE)
        raise InvalidInput(
            f"'inputs' must be an object of arrays by input name, got {shown(inputs)}"
            f"{elsewhere or NAMELESS}"
        )

    def take_inputs(self) -> Mapping[str, Any]:
        """Return the inputs as Python lists and dicts."""
        if (held := self._held) is not None:
            self.inputs = {name: simdjson_reader.plain(one) for name, one in self.inputs.items()}
            self._held = None
            held.release()
        return self.inputs


NAMELESS = "; 'input' takes the array of a model's only input, and 'rows' a list of rows by column"


def _check_keys(document: Mapping[str, object]) -> None:
    for key in document:
        if key not in _KEYS:
            raise InvalidInput(f"unknown key {quoted(key)} in the body{_meant(key, document)}")


def _meant(key: str, document: Mapping[str, object]) -> str:
    hint = other_form(document, SIMPLE) or did_you_mean(key, _KEYS)
    if hint.startswith("; did") or "inputs" in document or "input" in document:
        return hint
    return hint if hint.startswith("; POST") else f"; arrays go under 'inputs', by name{NAMELESS}"


def _read_rest(request: PredictRequest, document: Mapping[str, Any]) -> None:
    _check_keys(document)
    if "input" in document and not request.single:
        raise InvalidInput("the body must have either 'inputs' or 'input', got both")
    if request.rows is None and document.get("rows") is not None:
        given = "input" if request.single else "inputs"
        raise InvalidInput(f"the body must have either 'rows' or '{given}', got both")
    get = document.get
    request.model = _text("model", get("model"))
    request.id = _text("id", get("id"))
    check_id(request.id)
    if (version := get("version")) is not None:
        request.version = _version(version)
    if (outputs := get("outputs")) is not None:
        request.outputs = _names(outputs)
    if (timeout_ms := get("timeout_ms")) is not None:
        request.timeout = read_seconds(timeout_ms)
    if (parameters := get("parameters")) is not None:
        request.parameters = _parameters(parameters)


def check_id(value: str | None) -> None:
    """Raise InvalidInput for an id that is too long."""
    if value is not None and len(value) > MAX_ID:
        raise too_long_id()


def too_long_id() -> InvalidInput:
    """Make the error for an id of more than MAX_ID characters."""
    return InvalidInput(f"'id' has more than {MAX_ID} characters")


def _text(key: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{quoted(key)} must be a string, got {shown(value)}")


def _version(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return str(value)
    raise InvalidInput(f"'version' must be a string or a positive integer, got {shown(value)}")


def _names(value: object) -> list[str]:
    if not isinstance(value, LISTS):
        raise InvalidInput(f"'outputs' must be a list of output names, got {shown(value)}")
    names = few_of(value)
    if not names:
        raise InvalidInput("'outputs' is empty; omit it to get all outputs")
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"'outputs' must be a list of output names, got {shown(name)} in it")
    return names


def read_seconds(value: object) -> float:
    """Convert a `timeout_ms` to seconds. Raises InvalidInput."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidInput(f"'timeout_ms' must be a number, got {shown(value)}")
    if not (value > 0 and isfinite(value)):
        raise InvalidInput(f"'timeout_ms' must be > 0, got {shown(value)}")
    return value / 1000


def _parameters(value: object) -> Mapping[str, Parameter]:
    if not isinstance(value, dict):
        raise InvalidInput(f"'parameters' must be an object, got {shown(value)}")
    for key, parameter in value.items():
        if not isinstance(parameter, str | int | float):
            raise InvalidInput(
                f"parameter {quoted(key)} must be a string, number or boolean, "
                f"got {shown(parameter)}"
            )
    return value


# --- Inputs to arrays


def decode_inputs(request: PredictRequest, specs: Sequence[TensorSpec]) -> Arrays:
    """Make arrays of a request's inputs. JSON carries no datatype, so `specs` determine it.

    Shapes are as sent: lists are not ragged, and `tensors.check_inputs` checks the rest. The arrays
    may be read-only. Decode a request only once. Raises InvalidInput.
    """
    inputs = request.inputs
    if request.single:
        if len(specs) != 1:
            raise InvalidInput(
                "'input' is for a model with one input; this one has "
                f"{quoted_names(spec.name for spec in specs)}: "
                "give them by name under 'inputs'"
            )
        value = inputs["input"]
        if isinstance(value, dict | JsonObject) and specs[0].name in value:
            raise InvalidInput("'input' takes an array; arrays by name go under 'inputs'")
        inputs = {specs[0].name: value}
    if (held := request._held) is not None:
        check_names(specs, inputs)
        arrays = _decode_long(request, held.body, inputs, specs)
        # Release the document: it may be several times as large as the body.
        request._held, request.inputs, inputs = None, arrays, arrays
        held.release()
        return arrays
    if len(inputs) != len(specs):
        check_names(specs, inputs)
    arrays = {}
    for spec in specs:
        try:
            value = inputs[spec.name]
        except KeyError:
            check_names(specs, inputs)
            raise
        array = pack_short(spec.datatype, value, booleans=request._booleans)
        if array is None:
            array = make_input(spec, value)
        arrays[spec.name] = array if array.ndim != 1 else spec.fit(array)
    return arrays


def _decode_long(
    request: PredictRequest, body: bytes, inputs: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> Arrays:
    arrays: Arrays = {}
    unproven = []
    lists = 0 if request.outputs is None else 1
    for spec in specs:
        value = inputs[spec.name]
        array = None
        if isinstance(value, JsonArray):
            array = simdjson_reader.read_array(spec.datatype, value)
        if array is not None:
            unproven.append(spec)
        elif len(body) < CUT_FROM_BYTES:
            array = make_input(spec, simdjson_reader.plain(value))
        else:
            return _decode_again(body, specs)
        lists += simdjson_reader.lists_in(array.shape)
        arrays[spec.name] = spec.fit(array)
    if unproven and lists != simdjson_reader.lists_at_most(body):
        if len(body) >= CUT_FROM_BYTES:
            return _decode_again(body, specs)
        for spec in unproven:
            array = make_input(spec, simdjson_reader.plain(inputs[spec.name]))
            arrays[spec.name] = spec.fit(array)
    return arrays


def _decode_again(body: bytes, specs: Sequence[TensorSpec]) -> Arrays:
    """Decode a body in pieces: simdjson holds the interpreter's lock while it makes lists."""
    return decode_inputs(PredictRequest.from_document(parse_json(body), body), specs)


def make_input(spec: TensorSpec, value: object) -> Array:
    """Make the array for an input from its JSON value. Raises InvalidInput."""
    if spec.datatype == ANY:
        return from_any(spec.name, value)
    spec.dtype  # noqa: B018 - raises for what cannot be sent
    if is_base64(value) and is_stream(spec):
        return read_stream(decode_base64(spec.name, value))
    return from_json(spec, value)
