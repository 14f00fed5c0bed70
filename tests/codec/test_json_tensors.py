"""Values in JSON become arrays of the datatype of the model, or are refused with their place."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.codec import PredictRequest, decode_inputs, decode_tensor, encode_tensor
from cohort.codec.json_outputs import LongParts
from cohort.codec.json_tensors import shown
from cohort.errors import InvalidInput
from cohort.tensors import BY_NAME, TensorSpec, check_inputs
from tests.codec.bodies import (
    ALWAYS,
    INTEGERS,
    NEVER,
    arrays,
    decode,
    refusal,
    same,
    simdjson_from,
)
from tests.examples import examples


@pytest.mark.parametrize(
    ("value", "datatype", "said"),
    [
        ([[1, 2], [3]], "FP32", "'x' is ragged: length 2 at [0], length 1 at [1]"),
        ([[1, 2], [3], [4, 5, 6]], "FP32", "'x' is ragged: length 2 at [0], length 1 at [1]"),
        ([[[1], [2]], [[3], []], [[4], [5, 6]]], "INT8", "length 1 at [0][0], length 0 at [1][1]"),
        ([[[1], [2]], [[3]], [[4], [5], [6]]], "INT8", "length 2 at [0], length 1 at [1]"),
        ([[1, 2], 3], "FP32", "'x' is ragged: a list at [0], 3 at [1]"),
        ([1, [2]], "FP32", "'x' is ragged: no list at [0], a list at [1]"),
        ([[1, 2], [3, [4]]], "FP32", "'x' is ragged: no list at [0][0], a list at [1][1]"),
        ([[1, []], [2, [3, 4]]], "FP32", "'x' is ragged"),
        ([["a"], "b"], "BYTES", "'x' is ragged"),
        ([[1, 2], [3, True]], "FP32", "'x' must be FP32, got true at [1][1]"),
        ([[False]], "INT64", "'x' must be INT64, got false at [0][0]"),
        ([[1]], "BOOL", "'x' must be BOOL, got 1 at [0][0]"),
        (None, "FP64", "'x' must be FP64, got null"),
        ([[1, None]], "FP4E2M1", "'x' must be FP4E2M1, got null at [0][1]: send a value"),
        ([[1, None]], "BOOL", "'x' must be BOOL, got 1 at [0][0]"),
        ([[True, None]], "BOOL", "'x' must be BOOL, got null at [0][1]"),
        ([["a", None]], "BYTES", "got null at [0][1]: send a value, or set the replacement for a"),
        ([[1, None]], "INT64", "under inputs.x.missing, or give the model a float input"),
        ([["1"]], "FP32", "'x' must be FP32, got the string '1' at [0][0]"),
        ([[{"a": 1}]], "FP32", "'x' must be FP32, got an object at [0][0]"),
        ({"a": 1}, "FP32", "'x' must be FP32, got an object"),
        ("1", "FP32", "'x' must be FP32, got the string '1'"),
        ([[1]], "BYTES", "'x' must be BYTES, got 1 at [0][0]"),
        ([[1, 1.5]], "INT64", "'x' must be INT64, got 1.5 at [0][1]"),
        ([[-1e-300]], "INT64", "'x' must be INT64, got -1e-300 at [0][0]"),
        (b"[[9007199254740993.0]]", "INT64", "'x' must be INT64, got 9007199254740992.0 at [0][0]"),
        (b"[[-9223372036854775809]]", "INT64", "at [0][0], which is out of range"),
        (b"[[300.0]]", "UINT8", "'x' must be UINT8, got 300 at [0][0], which is out of range"),
        ([[1, 128]], "INT8", "'x' must be INT8, got 128 at [0][1], which is out of range"),
        ([[-1]], "UINT8", "'x' must be UINT8, got -1 at [0][0], which is out of range"),
        ([[-1]], "UINT64", "'x' must be UINT64, got -1 at [0][0], which is out of range"),
        ([[2**63]], "INT64", "'x' must be INT64, got 9223372036854775808 at [0][0], which is out"),
        (
            b"[[18446744073709551616]]",
            "UINT64",
            "got 1.8446744073709552e+19 at [0][0], which is out of",
        ),
        (b"[[1e300]]", "FP32", "'x' must be FP32, got 1e+300 at [0][0], which is out of range"),
        (
            b"[[1, 2, 3, 4], [5, 1e39, 7, 1e40]]",
            "FP32",
            "'x' must be FP32, got 1e+39 at [1][1], which is out of range",
        ),
        (b"[[1, 65520]]", "FP16", "'x' must be FP16, got 65520 at [0][1], which is out of range"),
        (b"[[-3.4e38, 3.4e38]]", "BF16", "'x' must be BF16, got -3.4e+38 at [0][0], which is out"),
        (b"[" * 70 + b"]" * 70, "FP32", "'x' is nested deeper than 64 lists"),
    ],
)
def test_a_refusal_names_the_value_and_its_place(value: object, datatype: str, said: str) -> None:
    """Every refusal names the input and where in it, short or long alike."""
    assert said in refusal(value, datatype)


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        (449, "FP8E4M3FN"), (1e9, "FP8E4M3FNUZ"), (1e9, "FP8E5M2"), (1e9, "FP8E5M2FNUZ"),
        (0, "FP8E8M0"), (-1, "FP8E8M0"), (6.5, "FP4E2M1"), (8, "INT4"), (-1, "UINT4"),
        (2, "INT2"), (4, "UINT2"),
    ],
)  # fmt: skip
def test_values_out_of_the_range_of_small_datatypes_are_refused(
    value: float, datatype: str
) -> None:
    """Some of them have no infinity, NaN, zero or sign."""
    said = refusal([[1, value]], datatype)
    assert f"must be {datatype}, got {shown(value)} at [0][1], which is out of range" in said


def test_a_number_out_of_the_range_of_a_double_is_refused() -> None:
    """1e400 is not read as infinity."""
    assert "infinity" in refusal(b"[[1e400]]", "FP64")


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_both_ends_of_their_range(datatype: str, size: int) -> None:
    """They are exact beyond 2**53, and unsigned ones above 2**63."""
    limits = ml_dtypes.iinfo(BY_NAME[datatype].dtype)  # type: ignore[no-untyped-call]
    values = [[int(limits.min), int(limits.max)], [int(limits.max) - 1, 0]]
    with simdjson_from(size):
        assert decode(values, datatype).tolist() == values


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_float_inputs_take_integers_of_any_length(size: int) -> None:
    """1, 2**64 and a hundred digits are numbers."""
    text = b"[[1, 18446744073709551616, -9007199254740993], [" + b"9" * 100 + b", 0, -0]]"
    with simdjson_from(size):
        array = decode(text, "FP64")
    assert array.tolist() == [[1.0, 2.0**64, -(2.0**53)], [1e100, 0.0, 0.0]]


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        ([], ("N", 4), (0, 4)),
        ([], ("N",), (0,)),
        ([], ("N", 3, "h", None), (0, 3, 0, 0)),
        ([], None, (0,)),
        ([[], []], ("N", "M"), (2, 0)),
        ([[], []], ("N", "M", 3), (2, 0, 3)),
        ([[]], ("N", 4), (1, 0)),
    ],
)
def test_an_empty_list_gets_its_other_dimensions_from_the_model(
    value: object, shape: Any, expected: tuple[int, ...], size: int
) -> None:
    """Open dimensions become 0; what was sent stays as sent, for the shape check to judge."""
    with simdjson_from(size):
        for datatype in ("FP32", "INT64", "BYTES", "BOOL"):
            assert decode(value, datatype, shape).shape == expected


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_a_scalar_input_takes_a_value_without_lists(size: int) -> None:
    """This holds for numbers, booleans and text."""
    with simdjson_from(size):
        for value, datatype in ((1.5, "FP32"), (7, "UINT64"), (True, "BOOL"), ("é", "BYTES")):
            array = decode(value, datatype, ())
            assert array.shape == ()
            assert array[()] == value


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_strings_are_read_unchanged(size: int) -> None:
    """They may be empty, beyond ASCII, with NUL, with brackets, or nested."""
    values = [["", "é\u2028😀"], ["a\0b", "[true, [["]]
    with simdjson_from(size):
        array = decode(values, "BYTES")
    assert array.dtype == np.object_
    assert array.tolist() == values


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_brackets_in_strings_are_not_taken_for_lists(size: int) -> None:
    """The text's brackets are counted: more than there are lists leads to the careful way."""
    specs = [TensorSpec("s", "BYTES", ("N",)), TensorSpec("x", "FP32", ("N", "M"))]
    with simdjson_from(size):
        body = b'{"outputs": ["y[0]"], "inputs": {"s": ["[["], "x": [[1, 2], [3, 4]]}}'
        assert decode_inputs(PredictRequest.parse(body), specs)["x"].tolist() == [[1, 2], [3, 4]]
        with pytest.raises(InvalidInput, match="ragged"):
            decode_inputs(PredictRequest.parse(body.replace(b"[3, 4]", b"[3, [4]]")), specs)


def test_decoded_inputs_pass_the_models_own_check() -> None:
    """An input that decodes with the right shape passes `check_inputs`."""
    specs = [TensorSpec("x", "BF16", ("N", 2)), TensorSpec("m", "BOOL", ("N",))]
    decoded = decode_inputs(
        PredictRequest.parse(b'{"inputs": {"x": [[1, 0.5]], "m": [false]}}'), specs
    )
    check_inputs(specs, decoded)
    assert decoded["x"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("datatype", sorted(BY_NAME))
@settings(max_examples=examples(40))
@given(data=st.data())
def test_json_round_trips_every_array(datatype: str, data: st.DataObject) -> None:
    """Encoded and decoded, an array of any datatype and shape is the same to the last bit."""
    array = data.draw(arrays(datatype))
    text = orjson.dumps(encode_tensor("x", array), option=orjson.OPT_SERIALIZE_NUMPY)
    for size in (NEVER, ALWAYS):
        with simdjson_from(size):
            assert same(decode(text, datatype, array.shape), array)
    if array.ndim:
        nested = orjson.loads(text)
        assert same(decode_tensor("x", datatype, array.shape, nested), array)
        flat = orjson.dumps(
            encode_tensor("x", array.reshape(-1)), option=orjson.OPT_SERIALIZE_NUMPY
        )
        assert same(decode_tensor("x", datatype, array.shape, orjson.loads(flat)), array)


@pytest.mark.parametrize(
    ("data", "shape", "said"),
    [
        ([1, 2, 3], [2, 2], "of shape [2, 2] needs 4 elements, got 3"),
        ([[1, 2], [3, 4]], [4, 1], "has shape [4, 1], but its data has [2, 2]"),
        ([[1, 2], [3]], [3], "ragged"),
        (5, [], "must be a list, got 5"),
        ([1, True], [2], "got true at [1]"),
    ],
)
def test_a_json_tensor_must_fit_its_shape(data: object, shape: list[int], said: str) -> None:
    """Open Inference data is flat, or nested according to its shape."""
    with pytest.raises(InvalidInput) as caught:
        decode_tensor("x", "INT32", shape, data)
    assert said in str(caught.value)


@pytest.mark.parametrize("shape", [(1 << 20,), (1, 1 << 19), (3, 1 << 18), (1 << 17, 7), (2, 0)])
def test_long_arrays_are_written_in_parts_and_read_the_same(shape: tuple[int, ...]) -> None:
    """Whichever of their dimensions is the long one."""
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    parts = LongParts()
    document = {"a": parts.put(array), "b": [1], "c": parts.put(array)}
    assert orjson.loads(parts.dump(document)) == {
        "a": array.tolist(),
        "b": [1],
        "c": array.tolist(),
    }
