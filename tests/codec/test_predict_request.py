"""Predict requests: which keys a body has, and which bodies are refused."""

from __future__ import annotations

import re

import pytest

from cohort.codec import PredictRequest, decode_inputs
from cohort.errors import InvalidInput
from cohort.tensors import TensorSpec, check_inputs
from tests.codec.bodies import (
    ALWAYS,
    NEVER,
    decode,
    simdjson_from,
)


def test_every_key_of_a_request_is_read() -> None:
    """Model, version, inputs, outputs, id, timeout in seconds and parameters all arrive."""
    request = PredictRequest.parse(
        b'{"model": "iris", "version": "1", "inputs": {"x": [[1]]}, "outputs": ["label"],'
        b' "id": "a1", "timeout_ms": 200, "parameters": {"user": "u", "n": 1, "b": true}}'
    )
    assert (request.model, request.version, request.id) == ("iris", "1", "a1")
    assert request.outputs == ["label"]
    assert request.timeout == 0.2
    assert request.parameters == {"user": "u", "n": 1, "b": True}
    assert not request.single


def test_missing_and_null_keys_are_none() -> None:
    """An absent key and a null one mean the same."""
    for body in (b'{"input": [1]}', b'{"input": [1], "model": null, "inputs": null, "rows": null}'):
        request = PredictRequest.parse(body)
        assert request.single
        assert {request.model, request.version, request.id} == {None}
        assert request.outputs is None
        assert request.timeout is None
        assert request.parameters == {}


def test_an_integer_version_is_kept_as_its_text() -> None:
    """`"version": 2` asks for the same as `"version": "2"`."""
    assert PredictRequest.parse(b'{"input": [1], "version": 2}').version == "2"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b'{"input": [1,]}', "line 1 column 13"),
        (b'{"input": [1]} x', "line 1 column 16"),
        (
            b'{"input": Infinity}',
            "; JSON has no infinity, and null for NaN: the binary forms of V2",
        ),
        (b"{'input': [1]}", "; JSON has double quotes, as json.dumps writes them"),
        (b'{"input": [True]}', "; JSON has true, false and null, as json.dumps writes them"),
        (b'{"input": "\xff"}', "the body is not valid JSON: "),
        (b"[1]", "must be a JSON object, got a list; an array alone goes under 'input'"),
        (b"null", "the body must be a JSON object, got null"),
        (b'{"rows": null}', "'rows' must be a list of rows, got null"),
        (b"{}", "neither 'inputs' nor 'input'"),
        (b'{"input": [1], "inputs": {"x": [1]}}', "either 'inputs' or 'input', got both"),
        (
            b'{"inputs": [[1]]}',
            "'inputs' must be an object of arrays by input name, got a list; 'input' takes the "
            "array of a model's only input, and 'rows' a list of rows",
        ),
        (
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}',
            "; POST /v2/models/{model}/infer takes the Open Inference form",
        ),
        (b'{"dataframe_split": {}}', "; POST /invocations takes MLflow's form"),
        (b'{"x": [1]}', "unknown key 'x' in the body; arrays go under 'inputs', by name; 'input'"),
        (
            b'{"messages": []}',
            "'messages' in the body; POST /v1/chat/completions takes OpenAI's form",
        ),
        (b'{"prompt": "a"}', "'prompt' in the body; POST /v1/completions takes OpenAI's form"),
        (b'{"data": [1]}', "unknown key 'data' in the body; arrays go under 'inputs', by name"),
        (b'{"imput": [1]}', "unknown key 'imput' in the body; did you mean 'input'?"),
        (
            b'{"input": [1], "ouputs": ["y"]}',
            "unknown key 'ouputs' in the body; did you mean 'outputs'?",
        ),
        (
            b'{"instances": [1]}',
            "'instances' in the body; POST /v1/models/{model}:predict takes TensorFlow Serving's",
        ),
        (b'{"input": [1], "model": 1}', "'model' must be a string, got 1"),
        (b'{"input": [1], "id": 1}', "'id' must be a string, got 1"),
        (
            b'{"input": [1], "version": 0}',
            "'version' must be a string or a positive integer, got 0",
        ),
        (b'{"input": [1], "version": true}', "'version' must be a string or a positive integer"),
        (b'{"input": [1], "version": 1.0}', "'version' must be a string or a positive integer"),
        (b'{"input": [1], "outputs": "y"}', "'outputs' must be a list of output names"),
        (
            b'{"input": [1], "outputs": [1]}',
            "a list of output names, got 1 in it",
        ),
        (b'{"input": [1], "outputs": []}', "'outputs' is empty"),
        (b'{"input": [1], "timeout_ms": "5"}', "'timeout_ms' must be a number"),
        (b'{"input": [1], "timeout_ms": true}', "'timeout_ms' must be a number, got true"),
        (b'{"input": [1], "timeout_ms": 0}', "'timeout_ms' must be > 0"),
        (b'{"input": [1], "parameters": [1]}', "'parameters' must be an object"),
        (
            b'{"input": [1], "parameters": {"a": null}}',
            "parameter 'a' must be a string, number or bo",
        ),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(body: bytes, said: str) -> None:
    """A short and a long body get the same reason."""
    for size in (NEVER, ALWAYS):
        with simdjson_from(size), pytest.raises(InvalidInput) as caught:
            PredictRequest.parse(body)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"\x93NUMPY\x01\x00", "begins like .npy: send Content-Type: application/x-npy"),
        (b"PK\x03\x04", "save one array with numpy.save"),
        (b"\x89PNG\r\n", "begins like PNG: send Content-Type: image/png"),
        (b"\xff\xd8\xff\xe0", "begins like JPEG: send Content-Type: image/jpeg"),
        (b"\x1f\x8b\x08", "begins like gzip: send Content-Encoding: gzip"),
        (b"\xff\xfe{\0", "begins like UTF-16"),
        (b"\xfe\xff\0{", "begins like UTF-16"),
    ],
)
def test_a_file_that_came_as_json_is_named(start: bytes, said: str) -> None:
    """Its first bytes identify it, in a short and in a long body; the error states what to send."""
    for body in (start, start + bytes(1 << 20)):
        with pytest.raises(InvalidInput, match=re.escape(said)):
            PredictRequest.parse(body)


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_a_list_is_a_column(size: int) -> None:
    """An input [N, 1] takes a value for each row, and a list for each row."""
    city, age = TensorSpec("city", "BYTES", (None, 1)), TensorSpec("age", "FP32", ("N", 1))
    for body in (
        '{"inputs": {"city": ["Ulm", "Köln"], "age": [1, 2]}}',
        '{"inputs": {"city": [["Ulm"], ["Köln"]], "age": [[1], [2]]}}',
    ):
        with simdjson_from(size):
            arrays = decode_inputs(PredictRequest.parse(body.encode()), [city, age])
        check_inputs([city, age], arrays)
        assert arrays["city"].tolist() == [["Ulm"], ["Köln"]]
        assert arrays["age"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_the_last_of_repeated_keys_counts(size: int) -> None:
    """This holds in the request and among its inputs, in both readers."""
    with simdjson_from(size):
        request = PredictRequest.parse(b'{"id": "a", "id": "b", "inputs": {"x": [1], "x": [2, 3]}}')
        assert request.id == "b"
        array = decode_inputs(request, [TensorSpec("x", "INT64", ("N",))])["x"]
    assert array.tolist() == [2, 3]


def test_a_byte_order_mark_is_skipped_at_any_length() -> None:
    """Some editors and languages write one; no other text may come before JSON."""
    spec = [TensorSpec("x", "INT64", ("N",))]
    for size in (NEVER, ALWAYS):
        with simdjson_from(size):
            request = PredictRequest.parse(b'\xef\xbb\xbf{"input": [1]}')
            assert decode_inputs(request, spec)["x"].tolist() == [1]
            with pytest.raises(InvalidInput, match="byte order mark"):
                PredictRequest.parse(b'\xef\xbb\xbf\xef\xbb\xbf{"input": [1]}')


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_names_that_differ_after_a_nul_are_different(size: int) -> None:
    """A lookup in C would stop at the NUL."""
    specs = [TensorSpec(name, "INT64", ("N",)) for name in ("x", "x\0y")]
    with simdjson_from(size):
        arrays = decode_inputs(
            PredictRequest.parse(b'{"inputs": {"x": [1], "x\\u0000y": [2]}}'), specs
        )
    assert [arrays[spec.name].tolist() for spec in specs] == [[1], [2]]


def test_the_single_form_needs_a_model_with_one_input() -> None:
    """The error lists several inputs; a single one gets the values."""
    request = PredictRequest.parse(b'{"input": [[1, 2]]}')
    assert list(decode_inputs(request, [TensorSpec("f", "FP32", ("N", 2))])) == ["f"]
    with pytest.raises(InvalidInput, match="this one has 'a', 'b'"):
        decode_inputs(request, [TensorSpec("a", "FP32", ()), TensorSpec("b", "FP32", ())])
    with pytest.raises(InvalidInput, match="this one has none"):
        decode_inputs(request, [])


def test_missing_and_unknown_inputs_are_refused() -> None:
    """An unknown input and a missing one are each named."""
    specs = [TensorSpec("features", "FP32", ("N", 1))]
    with pytest.raises(InvalidInput, match="'feature' not found; did you mean 'features'"):
        decode_inputs(PredictRequest.parse(b'{"inputs": {"feature": [[1]]}}'), specs)
    with pytest.raises(InvalidInput, match="'features' is missing"):
        decode_inputs(PredictRequest.parse(b'{"inputs": {}}'), specs)
    assert decode_inputs(PredictRequest.parse(b'{"inputs": {}}'), []) == {}


def test_an_input_that_is_not_a_tensor_is_refused() -> None:
    """A model with a sequence as its input is not reached by JSON."""
    with pytest.raises(InvalidInput, match="cannot be sent over the wire"):
        decode([[1]], "seq(tensor(float))", None)
