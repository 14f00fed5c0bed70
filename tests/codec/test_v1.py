"""TensorFlow Serving's bodies: what is read from rows and columns, and how outputs are written."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from cohort.codec import parse_v1
from cohort.errors import InvalidInput
from cohort.tensors import Array, TensorSpec

X = TensorSpec("x", "FP32", ("N", 2))
NUMBERS = TensorSpec("n", "INT64", ("N",))
WORDS = TensorSpec("words", "BYTES", ("N",))


def parsed(document: object, *specs: TensorSpec) -> dict[str, Any]:
    """The arrays of a body, as lists."""
    arrays = parse_v1(json.dumps(document).encode()).decode(specs)
    return {name: array.tolist() for name, array in arrays.items()}


def refusal(document: object, *specs: TensorSpec) -> str:
    with pytest.raises(InvalidInput) as refused:
        parsed(document, *specs)
    return str(refused.value)


def b64(text: str) -> dict[str, str]:
    return {"b64": b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    "document",
    [
        {"instances": [[1, 2], [3, 4]]},
        {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]},
        {"inputs": [[1, 2], [3, 4]]},
        {"inputs": {"x": [[1, 2], [3, 4]]}, "signature_name": "serving_default"},
        {"inputs": [[1, 2], [3, 4]], "signature_name": ""},
        {"inputs": [[1, 2], [3, 4]], "signature_name": None},
    ],
)
def test_all_forms_of_one_input_mean_the_same(document: object) -> None:
    """Rows and columns are accepted, with the input's name or without it."""
    assert parsed(document, X) == {"x": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    "document",
    [
        {"instances": [{"x": [1, 2], "n": 5}, {"x": [3, 4], "n": 6}]},
        {"inputs": {"x": [[1, 2], [3, 4]], "n": [5, 6]}},
    ],
)
def test_several_inputs_come_by_name(document: object) -> None:
    """Rows and columns are accepted."""
    assert parsed(document, X, NUMBERS) == {"x": [[1, 2], [3, 4]], "n": [5, 6]}


def test_base64_stands_for_text_where_the_input_has_text() -> None:
    """Alone or nested, by row or by column; plain text stays what it is."""
    wide = TensorSpec("words", "BYTES", ("N", 2))
    assert parsed({"instances": [b64("é"), "plain"]}, WORDS) == {"words": ["é", "plain"]}
    assert parsed({"inputs": {"words": [b64("a"), "b"]}}, WORDS) == {"words": ["a", "b"]}
    assert parsed({"instances": [[b64("a"), "b"]]}, wide) == {"words": [["a", "b"]]}
    assert parsed({"instances": [{"words": b64("a")}]}, WORDS) == {"words": ["a"]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"b64": "w"}, "not base64"),
        ({"b64": "é"}, "not base64"),
        ({"b64": "a b="}, "not base64"),
    ],
)
def test_invalid_base64_is_refused(value: object, says: str) -> None:
    """The error names the input."""
    said = refusal({"instances": [value]}, WORDS)
    assert says in said
    assert "'words'" in said


@pytest.mark.parametrize("value", [{"b64": 1}, {"b64": "YQ==", "c": 1}])
def test_what_only_looks_like_base64_is_inputs_by_name(value: object) -> None:
    """An input may also be called b64."""
    assert "b64" in refusal({"instances": [value]}, WORDS)
    spec = TensorSpec("b64", "INT64", ("N",))
    assert parsed({"instances": [{"b64": 1}]}, spec) == {"b64": [1]}


def test_text_nested_too_deep_is_refused() -> None:
    """It is refused also if it is deeper than a function could recurse."""
    deep = b'{"instances": ' + b"[" * 900 + b'"a"' + b"]" * 900 + b"}"
    with pytest.raises(InvalidInput):
        parse_v1(deep).decode([WORDS])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "is empty"),
        (b"{", "the body is not valid JSON: "),
        (b"[1]", "must be a JSON object"),
        (b"{}", "neither 'instances' nor 'inputs'"),
        (b'{"input": [1]}', "; POST /models/{model}/predict takes this form"),
        (b'{"inputs": [{"name": "x", "data": [1]}]}', "; POST /v2/models/{model}/infer takes the"),
        (b'{"messages": []}', "; POST /v1/chat/completions takes OpenAI's form"),
        (b'{"instance": [1]}', "did you mean 'instances'"),
        (b'{"instances": [1], "inputs": [1]}', "got both"),
        (b'{"instances": {"x": 1}}', "must be a list"),
        (b'{"instances": []}', "at least one instance"),
        (b'{"instances": [1], "signature_name": "other"}', "'other' not found"),
        (b'{"instances": [1], "signature_name": [1]}', "must be a string"),
    ],
)
def test_a_body_of_another_form_is_refused(body: bytes, says: str) -> None:
    """The error names the mistake."""
    with pytest.raises(InvalidInput, match=says):
        parse_v1(body)


@pytest.mark.parametrize("value", [True, False, "1"])
@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_numbers_are_numbers(form: str, value: object) -> None:
    """True is not 1 here, either."""
    assert "'x'" in refusal({form: [[1, 2], [3, value]]}, X)


def test_several_inputs_without_names_are_refused() -> None:
    """The refusal names them, and the form to send."""
    said = refusal({"instances": [[1, 2]]}, X, NUMBERS)
    assert "'x', 'n'" in said
    assert "each of 'instances' must be an object" in said
    assert "'inputs' must be an object" in refusal({"inputs": [[1, 2]]}, X, NUMBERS)
    assert "inputs none" in refusal({"inputs": [[1, 2]]})


def test_a_row_that_does_not_name_all_inputs_is_refused_by_its_number() -> None:
    """It is refused also if the first row names all of them."""
    first = {"x": [1, 2], "n": 5}
    for other in ([3, 4], {"x": [3, 4]}, {"x": [3, 4], "n": 6, "m": 7}, b64("a")):
        assert "instances[1]" in refusal({"instances": [first, other]}, X, NUMBERS)


def written(rows: bool, **outputs: Array) -> Any:
    body = b'{"instances": [1]}' if rows else b'{"inputs": [1]}'
    return json.loads(parse_v1(body).encode(outputs))


def test_one_output_is_written_without_its_name() -> None:
    """This holds by row and by column."""
    y = np.array([[1, 2], [3, 4]], "f4")
    assert written(True, y=y) == {"predictions": [[1, 2], [3, 4]]}
    assert written(False, y=y) == {"outputs": [[1, 2], [3, 4]]}


def test_several_outputs_are_written_by_name() -> None:
    """A row has all of them; whole numbers stay whole."""
    y, n = np.array([[1.5, 2], [3, 4]], "f4"), np.array([5, 6], "i8")
    assert written(True, y=y, n=n) == {
        "predictions": [{"y": [1.5, 2], "n": 5}, {"y": [3, 4], "n": 6}]
    }
    assert written(False, y=y, n=n) == {"outputs": {"y": [[1.5, 2], [3, 4]], "n": [5, 6]}}


def test_bytes_are_written_in_base64_where_the_name_says_so() -> None:
    """Bytes of other outputs are written as text."""
    words = np.array([["a", b"\xff"]], object)
    assert written(True, y_bytes=words) == {"predictions": [[{"b64": "YQ=="}, {"b64": "/w=="}]]}
    assert written(True, y=np.array(["a"], object)) == {"predictions": ["a"]}
    numbers = np.array([1], "i8")
    assert written(True, n_bytes=numbers) == {"predictions": [1]}


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ({"y": np.array(1.0, "f4")}, "'y' has no rows"),
        ({"y": np.ones(2, "f4"), "n": np.ones(3, "f4")}, "differ in their number of rows"),
    ],
)
def test_outputs_that_have_no_rows_are_not_written_by_row(
    outputs: dict[str, Array], says: str
) -> None:
    """Columns can be asked for instead."""
    with pytest.raises(InvalidInput, match=says) as refused:
        written(True, **outputs)
    assert "with 'inputs' instead of 'instances'" in str(refused.value)
    assert written(False, **outputs)
