"""Arrays, JSON and bytes: what goes in comes out, and what cannot be read is refused alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from app.codec import (
    PredictRequest,
    decode_inputs,
    decode_tensor,
    encode_prediction,
    encode_simple,
    encode_tensor,
    from_bytes,
    simdjson_reader,
    to_bytes,
)
from app.codec.json_tensors import shown
from app.errors import InferenceFailed, InvalidInput
from app.tensors import BY_NAME, DATATYPES, EXTENSION, Array, TensorSpec, check_inputs

INTEGERS = [row.name for row in DATATYPES if row.kind == "int"]
FLOATS = ["FP16", "BF16", "FP32", "FP64"]


def _numbers(dtype: np.dtype[np.generic]) -> list[int]:
    """Every finite number of a datatype of eight bits or fewer, as the byte it is."""
    every = np.arange(256).astype(np.uint8)
    read = every.view(dtype).astype(np.float32)
    back = read.astype(dtype).view(np.uint8)
    return [int(byte) for byte in every[np.isfinite(read) & (back == every)]]


SMALL = {row.name: _numbers(row.dtype) for row in EXTENSION}


@contextmanager
def long_from(size: int) -> Iterator[None]:
    """Give bodies from `size` bytes to simdjson, whatever the usual threshold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simdjson_reader, "MIN_BODY_BYTES", size)
        yield


NEVER, ALWAYS = 1 << 62, 0


def decode(value: object, datatype: str = "FP32", shape: Any = ("N", "M")) -> Array:
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    body = b'{"inputs": {"x": ' + body + b"}}"
    return decode_inputs(PredictRequest.parse(body), [TensorSpec("x", datatype, shape)])["x"]


def refusal(value: object, datatype: str = "FP32", shape: Any = ("N", "M")) -> str:
    """Say how both ways refuse `value`: with the same words."""
    said = []
    for size in (NEVER, ALWAYS):
        with long_from(size), pytest.raises(InvalidInput) as caught:
            decode(value, datatype, shape)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


def arrays(datatype: str, *, max_dims: int = 6) -> st.SearchStrategy[Array]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=0, max_side=3)
    if datatype == "BYTES":
        text = st.text(st.characters(codec="utf-8"), max_size=5)
        return hnp.arrays(np.object_, shapes, elements=text, fill=st.nothing())
    dtype = BY_NAME[datatype].dtype
    if datatype == "BF16":
        floats = st.floats(width=32, allow_nan=False, min_value=-(2.0**120), max_value=2.0**120)
        return hnp.arrays(np.float32, shapes, elements=floats).map(lambda one: one.astype(dtype))
    if datatype in SMALL:
        one_each = hnp.arrays(np.uint8, shapes, elements=st.sampled_from(SMALL[datatype]))
        return one_each.map(lambda one: one.view(dtype))
    if dtype.kind == "f":
        width: Any = dtype.itemsize * 8
        elements: Any = st.floats(width=width, allow_nan=False, allow_infinity=False)
        return hnp.arrays(dtype, shapes, elements=elements)
    return hnp.arrays(dtype, shapes)


def same(left: Array, right: Array) -> bool:
    """Whether two arrays have the same dtype, shape and bits: -0.0 is not 0.0."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == np.object_:
        return bool((left == right).all())
    return left.tobytes() == right.tobytes()


# --- The request


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


def test_what_is_left_out_or_null_is_none() -> None:
    """An absent key and a null one mean the same."""
    for body in (b'{"input": [1]}', b'{"input": [1], "model": null, "inputs": null, "id": null}'):
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
        (b'{"input": NaN}', "the body is not valid JSON: "),
        (b'{"input": "\xff"}', "the body is not valid JSON: "),
        (b"[1]", "the body must be a JSON object, got a list"),
        (b"null", "the body must be a JSON object, got null"),
        (b"{}", "neither 'inputs' nor 'input'"),
        (b'{"input": [1], "inputs": {"x": [1]}}', "either 'inputs' or 'input', got both"),
        (b'{"inputs": [[1]]}', "'inputs' must be an object of arrays by input name, got a list"),
        (
            b'{"input": [1], "ouputs": ["y"]}',
            "unknown key 'ouputs' in the body; did you mean 'outputs'?",
        ),
        (b'{"instances": [1]}', "unknown key 'instances' in the body"),
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
        (b'{"input": [1], "outputs": []}', "'outputs' names none"),
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
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence(body: bytes, said: str) -> None:
    """What is wrong is said, the same whether the body is short or long."""
    for size in (NEVER, ALWAYS):
        with long_from(size), pytest.raises(InvalidInput) as caught:
            PredictRequest.parse(body)
        assert said in str(caught.value)


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_a_key_given_twice_counts_as_given_last(size: int) -> None:
    """In the request and among its inputs, on both ways."""
    with long_from(size):
        request = PredictRequest.parse(b'{"id": "a", "id": "b", "inputs": {"x": [1], "x": [2, 3]}}')
        assert request.id == "b"
        array = decode_inputs(request, [TensorSpec("x", "INT64", ("N",))])["x"]
    assert array.tolist() == [2, 3]


def test_a_byte_order_mark_is_refused_at_any_length() -> None:
    """simdjson would skip it, orjson does not."""
    for size in (NEVER, ALWAYS):
        with long_from(size), pytest.raises(InvalidInput, match="byte order mark"):
            PredictRequest.parse(b'\xef\xbb\xbf{"input": [1]}')


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_names_that_share_a_beginning_up_to_a_nul_are_told_apart(size: int) -> None:
    """A lookup in C would stop at the NUL."""
    specs = [TensorSpec(name, "INT64", ("N",)) for name in ("x", "x\0y")]
    with long_from(size):
        arrays = decode_inputs(
            PredictRequest.parse(b'{"inputs": {"x": [1], "x\\u0000y": [2]}}'), specs
        )
    assert [arrays[spec.name].tolist() for spec in specs] == [[1], [2]]


def test_the_single_form_needs_a_model_with_one_input() -> None:
    """Of several, the names are given; the only one's name is filled in."""
    request = PredictRequest.parse(b'{"input": [[1, 2]]}')
    assert list(decode_inputs(request, [TensorSpec("f", "FP32", ("N", 2))])) == ["f"]
    with pytest.raises(InvalidInput, match="this one takes 'a', 'b'"):
        decode_inputs(request, [TensorSpec("a", "FP32", ()), TensorSpec("b", "FP32", ())])
    with pytest.raises(InvalidInput, match="this one takes none"):
        decode_inputs(request, [])


def test_inputs_are_those_of_the_model_no_more_no_less() -> None:
    """An unknown input and a missing one are each named."""
    specs = [TensorSpec("features", "FP32", ("N", 1))]
    with pytest.raises(InvalidInput, match="'feature' not found; did you mean 'features'"):
        decode_inputs(PredictRequest.parse(b'{"inputs": {"feature": [[1]]}}'), specs)
    with pytest.raises(InvalidInput, match="'features' is missing"):
        decode_inputs(PredictRequest.parse(b'{"inputs": {}}'), specs)
    assert decode_inputs(PredictRequest.parse(b'{"inputs": {}}'), []) == {}


def test_an_input_that_is_no_tensor_is_refused() -> None:
    """A model with a sequence as its input is not reached by JSON."""
    with pytest.raises(InvalidInput, match="cannot be sent over the wire"):
        decode([[1]], "seq(tensor(float))", None)


# --- Values


@pytest.mark.parametrize(
    ("value", "datatype", "said"),
    [
        ([[1, 2], [3]], "FP32", "'x' is ragged: length 2 at [0], length 1 at [1]"),
        ([[1, 2], [3], [4, 5, 6]], "FP32", "'x' is ragged: length 2 at [0], length 1 at [1]"),
        ([[[1], [2]], [[3], []], [[4], [5, 6]]], "INT8", "length 1 at [0][0], length 0 at [1][1]"),
        ([[[1], [2]], [[3]], [[4], [5], [6]]], "INT8", "length 2 at [0], length 1 at [1]"),
        ([[1, 2], 3], "FP32", "'x' is ragged: a list at [0], 3 at [1]"),
        ([1, [2]], "FP32", "'x' is ragged: 1 at [0], a list at [1]"),
        ([[1, 2], [3, [4]]], "FP32", "'x' is ragged: 1 at [0][0], a list at [1][1]"),
        ([[1, []], [2, [3, 4]]], "FP32", "'x' is ragged"),
        ([["a"], "b"], "BYTES", "'x' is ragged"),
        ([[1, 2], [3, True]], "FP32", "'x' takes FP32, got true at [1][1]"),
        ([[False]], "INT64", "'x' takes INT64, got false at [0][0]"),
        ([[1]], "BOOL", "'x' takes BOOL, got 1 at [0][0]"),
        ([[1, None]], "FP64", "'x' takes FP64, got null at [0][1]"),
        ([["1"]], "FP32", "'x' takes FP32, got the string '1' at [0][0]"),
        ([[{"a": 1}]], "FP32", "'x' takes FP32, got an object at [0][0]"),
        ({"a": 1}, "FP32", "'x' takes FP32, got an object"),
        ("1", "FP32", "'x' takes FP32, got the string '1'"),
        ([[1]], "BYTES", "'x' takes BYTES, got 1 at [0][0]"),
        ([[1, 1.5]], "INT64", "'x' takes INT64, got 1.5 at [0][1]"),
        ([[1.0]], "INT64", "'x' takes INT64, got 1.0 at [0][0]"),
        ([[1, 128]], "INT8", "'x' takes INT8, got 128 at [0][1], which is out of range"),
        ([[-1]], "UINT8", "'x' takes UINT8, got -1 at [0][0], which is out of range"),
        ([[-1]], "UINT64", "'x' takes UINT64, got -1 at [0][0], which is out of range"),
        ([[2**63]], "INT64", "'x' takes INT64, got 9223372036854775808 at [0][0], which is out"),
        (
            b"[[18446744073709551616]]",
            "UINT64",
            "got 1.8446744073709552e+19 at [0][0], which is out of",
        ),
        (b"[[1e300]]", "FP32", "'x' takes FP32, got 1e+300 at [0][0], which is out of range"),
        (b"[[1, 65520]]", "FP16", "'x' takes FP16, got 65520 at [0][1], which is out of range"),
        (b"[[-3.4e38, 3.4e38]]", "BF16", "'x' takes BF16, got -3.4e+38 at [0][0], which is out"),
        (b"[" * 70 + b"]" * 70, "FP32", "'x' is nested deeper than 64 lists"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(
    value: object, datatype: str, said: str
) -> None:
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
def test_the_smallest_datatypes_refuse_what_they_lack(value: float, datatype: str) -> None:
    """Some of them have no infinity, NaN, zero or sign to show for it."""
    said = refusal([[1, value]], datatype)
    assert f"takes {datatype}, got {shown(value)} at [0][1], which is out of range" in said


def test_a_parser_is_not_shared_while_a_request_holds_it() -> None:
    """Long requests open at once each keep their own values, also when one was let go of."""
    specs = [TensorSpec("x", "INT64", ("N",))]
    with long_from(ALWAYS):
        decode_inputs(PredictRequest.parse(b'{"input": [0]}'), specs)  # a parser is idle now
        first, second = (
            PredictRequest.parse(b'{"input": [1]}'),
            PredictRequest.parse(b'{"input": [2]}'),
        )
        kept = first.inputs
        assert decode_inputs(first, specs)["x"].tolist() == [1]
        third = PredictRequest.parse(b'{"input": [3]}')
        assert decode_inputs(third, specs)["x"].tolist() == [3]
        assert decode_inputs(second, specs)["x"].tolist() == [2]
        assert list(kept["input"]) == [1]


def test_a_number_no_double_holds_is_refused() -> None:
    """1e400 is no infinity."""
    assert "infinity" in refusal(b"[[1e400]]", "FP64")


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_both_ends_of_their_range(datatype: str, size: int) -> None:
    """Beyond 2**53 too, and for unsigned ones above 2**63."""
    limits = ml_dtypes.iinfo(BY_NAME[datatype].dtype)  # type: ignore[no-untyped-call]
    values = [[int(limits.min), int(limits.max)], [int(limits.max) - 1, 0]]
    with long_from(size):
        assert decode(values, datatype).tolist() == values


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_float_inputs_take_integers_of_any_length(size: int) -> None:
    """1, 2**64 and a hundred digits are numbers."""
    text = b"[[1, 18446744073709551616, -9007199254740993], [" + b"9" * 100 + b", 0, -0]]"
    with long_from(size):
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
def test_an_empty_list_takes_the_rest_of_its_shape_from_the_model(
    value: object, shape: Any, expected: tuple[int, ...], size: int
) -> None:
    """Open dimensions become 0; what was sent stays as sent, for the shape check to judge."""
    with long_from(size):
        for datatype in ("FP32", "INT64", "BYTES", "BOOL"):
            assert decode(value, datatype, shape).shape == expected


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_a_scalar_input_takes_a_bare_value(size: int) -> None:
    """Of every kind."""
    with long_from(size):
        for value, datatype in ((1.5, "FP32"), (7, "UINT64"), (True, "BOOL"), ("é", "BYTES")):
            array = decode(value, datatype, ())
            assert array.shape == ()
            assert array[()] == value


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_strings_arrive_whole(size: int) -> None:
    """Empty, beyond ASCII, with NUL, with brackets, nested."""
    values = [["", "é\u2028😀"], ["a\0b", "[true, [["]]
    with long_from(size):
        array = decode(values, "BYTES")
    assert array.dtype == np.object_
    assert array.tolist() == values


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_brackets_in_strings_do_not_confuse_the_numbers_beside_them(size: int) -> None:
    """The text's brackets are counted: more than there are lists leads to the careful way."""
    specs = [TensorSpec("s", "BYTES", ("N",)), TensorSpec("x", "FP32", ("N", "M"))]
    with long_from(size):
        body = b'{"outputs": ["y[0]"], "inputs": {"s": ["[["], "x": [[1, 2], [3, 4]]}}'
        assert decode_inputs(PredictRequest.parse(body), specs)["x"].tolist() == [[1, 2], [3, 4]]
        with pytest.raises(InvalidInput, match="ragged"):
            decode_inputs(PredictRequest.parse(body.replace(b"[3, 4]", b"[3, [4]]")), specs)


def test_decoded_inputs_pass_the_models_own_check() -> None:
    """What decodes with the right shape is what `check_inputs` takes."""
    specs = [TensorSpec("x", "BF16", ("N", 2)), TensorSpec("m", "BOOL", ("N",))]
    decoded = decode_inputs(
        PredictRequest.parse(b'{"inputs": {"x": [[1, 0.5]], "m": [false]}}'), specs
    )
    check_inputs(specs, decoded)
    assert decoded["x"].dtype == ml_dtypes.bfloat16


def test_long_bodies_are_read_on_many_threads_at_once() -> None:
    """Nothing is shared: each body has its own parser."""
    spec = [TensorSpec("input", "FP32", ("N", 500))]

    def work(seed: int) -> bool:
        array = np.random.default_rng(seed).random((20, 500), dtype=np.float32)
        body = orjson.dumps({"input": array}, option=orjson.OPT_SERIALIZE_NUMPY)
        return same(decode_inputs(PredictRequest.parse(body), spec)["input"], array)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


# --- Both ways say the same


def outcome(body: bytes, specs: list[TensorSpec], size: int) -> tuple[Any, ...]:
    """What becomes of a body: its arrays bit by bit, or the sentence it is refused with."""
    with long_from(size):
        try:
            request = PredictRequest.parse(body)
            decoded = decode_inputs(request, specs)
        except InvalidInput as error:
            return (str(error),)
    settled = [
        (name, str(one.dtype), one.shape, one.tolist() if one.dtype == object else one.tobytes())
        for name, one in decoded.items()
    ]
    return (_fields(request), settled)


def _fields(request: PredictRequest) -> tuple[Any, ...]:
    return (
        request.model, request.version, request.single, request.outputs, request.id,
        request.timeout, dict(request.parameters),
    )  # fmt: skip


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-200, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e300, 65520.0, -0.0, 3.5e38, 5e-324]),
    st.text(st.characters(codec="utf-8"), max_size=4),
    st.sampled_from(["[", "true", ""]),
)
EVEN = st.sampled_from(
    [st.integers(-100, 100), st.integers(0, 2**64 - 1), st.booleans(), st.text(max_size=2)]
).flatmap(
    lambda leaf: st.tuples(st.integers(0, 4), st.integers(0, 4)).flatmap(
        lambda size: st.lists(
            st.lists(leaf, min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
        )
    )
)
FLOAT_ROWS = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(
            st.floats(allow_nan=False, allow_infinity=False, width=32),
            min_size=width,
            max_size=width,
        ),
        max_size=5,
    )
)
NESTED = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
VALUES = st.one_of(EVEN, FLOAT_ROWS, NESTED, st.dictionaries(st.text(max_size=3), LEAVES))
SPECS = st.tuples(
    st.sampled_from(sorted(BY_NAME)),
    st.sampled_from([None, (), ("N",), ("N", 2), ("N", "M"), ("N", 3, None)]),
)


@given(value=VALUES, other=VALUES, spec=SPECS, other_spec=SPECS, outputs=st.booleans())
def test_short_and_long_ways_give_the_same_arrays_and_sentences(
    value: object, other: object, spec: Any, other_spec: Any, outputs: bool
) -> None:
    """Whatever two inputs hold, simdjson's way and orjson's agree to the bit and the word."""
    specs = [TensorSpec("x", *spec), TensorSpec("y", *other_spec)]
    document: dict[str, Any] = {"inputs": {"x": value, "y": other}}
    if outputs:
        document["outputs"] = ["a", "b"]
    try:
        body = orjson.dumps(document)
    except TypeError:  # text with exclusive surrogates
        return
    assert outcome(body, specs, NEVER) == outcome(body, specs, ALWAYS)


@given(array=st.sampled_from(["FP32", "FP64", "INT64"]).flatmap(arrays), pad=st.integers(-9, 9))
def test_nothing_changes_at_the_threshold(array: Array, pad: int) -> None:
    """Bodies padded to about the length where simdjson takes over say the same as ever."""
    datatype = {"f4": "FP32", "f8": "FP64", "i8": "INT64"}[array.dtype.str[1:]]
    shape = tuple("N" for _ in array.shape)
    body = orjson.dumps({"input": encode_tensor("x", array)}, option=orjson.OPT_SERIALIZE_NUMPY)
    body += b" " * max(simdjson_reader.MIN_BODY_BYTES + pad - len(body), 0)
    specs = [TensorSpec("x", datatype, shape)]
    usual = outcome(body, specs, simdjson_reader.MIN_BODY_BYTES)
    assert usual == outcome(body, specs, NEVER) == outcome(body, specs, ALWAYS)


SCRAPS = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b",", b":", b'"', b'"input"', b'"inputs"', b'"x"', b'"id"', b"1",
         b"-", b"0", b".5", b"e9", b"E400", b"true", b"null", b" ", b"\n", b"\x00", b"\x0c",
         b"\xff", b"\xc3\xa9", b"\\", b"\\u0000", b"\\ud800", b"/", b"#", b"18446744073709551616"]
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


@given(
    body=st.one_of(st.binary(max_size=40), SCRAPS, SCRAPS.map(lambda s: b'{"input":' + s + b"}"))
)
def test_any_bytes_are_answered_or_refused_the_same_both_ways(body: bytes) -> None:
    """Nothing but InvalidInput comes of rubbish, and the same sentence from both."""
    for datatype in ("FP32", "INT64", "BYTES"):
        specs = [TensorSpec("x", datatype, ("N", "M"))]
        assert outcome(body, specs, NEVER) == outcome(body, specs, ALWAYS)


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_a_body_cut_anywhere_is_refused(size: int) -> None:
    """Every beginning of a valid body is InvalidInput, and only that."""
    body = orjson.dumps(
        {
            "model": "é", "version": 1, "inputs": {"x": [[1.5, -2e3], [0, 4]], "s": ["a\n", "😀"]},
            "outputs": ["y"], "timeout_ms": 1.5, "parameters": {"user": "u", "f": True},
        }
    )  # fmt: skip
    with long_from(size):
        PredictRequest.parse(body)
        for end in range(len(body)):
            with pytest.raises(InvalidInput):
                PredictRequest.parse(body[:end])


# --- Answers


def answer(outputs: dict[str, Array], *, simple: bool = False, **more: Any) -> Any:
    write = encode_simple if simple else encode_prediction
    facts: dict[str, Any] = {"model": "m", "version": "1", "variant": None, "id": None, **more}
    return orjson.loads(write(**facts, outputs=outputs, inference_time=0.00031))


def test_an_answer_says_who_answered_and_how_long_it_took() -> None:
    """The time is in milliseconds; variant and id are there when there is one."""
    outputs: dict[str, Array] = {"label": np.array([0])}
    assert answer(outputs) == {
        "model": "m", "version": "1", "outputs": {"label": [0]}, "inference_time_ms": 0.31,
    }  # fmt: skip
    full = answer(outputs, variant="stable", id="a1")
    assert list(full) == ["model", "version", "variant", "id", "outputs", "inference_time_ms"]


def test_the_simple_answer_is_bare_for_one_output_and_named_for_several() -> None:
    """`prediction` is what tutorials expect."""
    one: Array = np.array([[0.5]], np.float32)
    assert answer({"y": one}, simple=True) == {
        "prediction": [[0.5]], "inference_time_ms": 0.31, "model": "m", "version": "1",
    }  # fmt: skip
    assert answer({"y": one, "z": one}, simple=True)["prediction"] == {"y": [[0.5]], "z": [[0.5]]}


def test_floats_are_written_as_short_as_their_own_precision_allows() -> None:
    """FP32 0.1 is 0.1, also as a scalar; FP64's digits are its own."""

    def text(array: Array) -> bytes:
        return orjson.dumps(encode_tensor("y", array), option=orjson.OPT_SERIALIZE_NUMPY)

    assert text(np.array([0.1, 1e-45], np.float32)) == b"[0.1,1e-45]"
    assert text(np.array(0.1, np.float32)) == b"0.1"
    assert text(np.array([0.1 + 0.2])) == b"[0.30000000000000004]"


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [1, 5000])
def test_what_json_has_no_number_for_is_refused(datatype: str, value: float, count: int) -> None:
    """NaN and infinity fail by the output's name and place, and are never null."""
    array = np.zeros((count, 2), BY_NAME[datatype].dtype)
    array[count - 1, 1] = value
    with pytest.raises(InferenceFailed, match=rf"'y' has .* at \[{count - 1}\]\[1\].* binary") as e:
        answer({"y": array})
    assert not e.value.blames_input


def test_large_finite_numbers_are_no_infinity() -> None:
    """Squares that overflow are not the numbers."""
    array: Array = np.array([3e38, -3e38], np.float32)
    assert answer({"y": array})["outputs"]["y"] == [3e38, -3e38]


def test_bytes_are_written_as_the_text_they_are_or_refused() -> None:
    """UTF-8 in a bytes element is text; what is none fails by name."""
    array = np.array([["a", b"\xc3\xa9"]], np.object_)
    assert answer({"y": array})["outputs"]["y"] == [["a", "é"]]
    for bad in (b"\xff", "\ud800"):
        with pytest.raises(InferenceFailed, match=r"'y' has bytes that are not UTF-8 at \[1\]"):
            answer({"y": np.array(["a", bad], np.object_)})


def test_any_layout_is_written_in_row_order() -> None:
    """Transposed, strided, reversed and byte-swapped arrays are written as they read."""
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (base.T, base[:, ::2], base[::-1], base.astype(">i4"), base.T.astype(">f8")):
        assert answer({"y": array})["outputs"]["y"] == array.tolist()


@pytest.mark.parametrize("datatype", sorted(BY_NAME))
@given(data=st.data())
def test_json_gives_back_every_array(datatype: str, data: st.DataObject) -> None:
    """Encoded and decoded, an array of any datatype and shape is the same to the last bit."""
    array = data.draw(arrays(datatype))
    text = orjson.dumps(encode_tensor("x", array), option=orjson.OPT_SERIALIZE_NUMPY)
    for size in (NEVER, ALWAYS):
        with long_from(size):
            assert same(decode(text, datatype, array.shape), array)
    if array.ndim:
        nested = orjson.loads(text)
        assert same(decode_tensor("x", datatype, array.shape, nested), array)
        flat = orjson.dumps(
            encode_tensor("x", array.reshape(-1)), option=orjson.OPT_SERIALIZE_NUMPY
        )
        assert same(decode_tensor("x", datatype, array.shape, orjson.loads(flat)), array)


# --- Bytes


@pytest.mark.parametrize("datatype", sorted(BY_NAME))
@given(data=st.data())
def test_bytes_give_back_every_array(datatype: str, data: st.DataObject) -> None:
    """Written and read, an array of any datatype and shape is the same to the last bit."""
    array = data.draw(arrays(datatype))
    for source in (array, np.asfortranarray(array)):
        sent = to_bytes(source)
        assert same(from_bytes(sent, datatype, array.shape), array)
        assert same(from_bytes(bytearray(sent), datatype, array.shape), array)


def test_bytes_are_neither_copied_in_nor_out() -> None:
    """The array lies over what was received, and the view over the array."""
    received = bytearray(np.arange(6, dtype="<f4").tobytes())
    array = from_bytes(memoryview(received), "FP32", [2, 3])
    received[0:4] = np.float32(7).tobytes()
    assert array[0, 0] == 7
    assert np.shares_memory(np.frombuffer(to_bytes(array), np.uint8), array)


def test_bytes_go_out_little_endian_from_anywhere() -> None:
    """A big-endian array is turned round."""
    assert bytes(to_bytes(np.array([1, 2], ">i2"))) == b"\x01\x00\x02\x00"


@pytest.mark.parametrize(
    ("buffer", "datatype", "shape", "said"),
    [
        (b"\0" * 7, "FP32", [2], "'x' of FP32 and shape [2] takes 8 bytes, got 7"),
        (b"", "FP32", [-1], "the shape of input 'x' must be whole numbers >= 0, got -1"),
        (b"", "FP32", [True], "must be whole numbers >= 0, got true"),
        (b"", "FP32", [1.0], "must be whole numbers >= 0, got 1.0"),
        (b"", "FP31", [1], "unknown datatype 'FP31'"),
        (b"", "INT8", [2**32, 2**32], "too many elements"),
        (b"", "INT8", [0, 2**62, 2**62], "too many elements"),
        (b"", "INT8", [2**40], "takes 1099511627776 bytes, got 0"),
        (b"", "INT8", [1] * 65, "65 dimensions"),
        (b"\0\1\2", "BOOL", [3], "takes bytes of 0 or 1, got 2 at byte 2"),
        (b"\1\0\0", "BYTES", [1], "takes at least 4 bytes, got 3"),
        (b"\2\0\0\0a", "BYTES", [1], "ends within its element number 0 of 1"),
        (b"\1\0\0\0a\0\0\0", "BYTES", [2], "ends within its element number 1 of 2"),
        (b"\1\0\0\0ab", "BYTES", [1], "1 bytes after its 1 elements"),
        (b"\1\0\0\0\xff", "BYTES", [1], "not UTF-8, number 0"),
        (b"\xff\xff\xff\xff", "BYTES", [1], "ends within"),
        (b"", "BYTES", [2**50], "takes at least"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(
    buffer: bytes, datatype: str, shape: Any, said: str
) -> None:
    """Shapes, lengths and contents are checked before anything is made of them."""
    with pytest.raises(InvalidInput) as caught:
        from_bytes(buffer, datatype, shape, name="x")
    assert said in str(caught.value)


@given(
    buffer=st.binary(max_size=24),
    datatype=st.sampled_from(sorted(BY_NAME)),
    shape=st.lists(st.integers(-1, 4), max_size=4),
)
def test_any_bytes_become_an_array_or_invalid_input(
    buffer: bytes, datatype: str, shape: list[int]
) -> None:
    """Nothing else is raised, and the shape is the one asked for."""
    try:
        array = from_bytes(buffer, datatype, shape)
    except InvalidInput:
        return
    assert array.shape == tuple(shape)


@pytest.mark.parametrize(
    ("data", "shape", "said"),
    [
        ([1, 2, 3], [2, 2], "of shape [2, 2] takes 4 elements, got 3"),
        ([[1, 2], [3, 4]], [4, 1], "has shape [4, 1], but its data has [2, 2]"),
        ([[1, 2], [3]], [3], "ragged"),
        (5, [], "must be a list, got 5"),
        ([1, True], [2], "got true at [1]"),
    ],
)
def test_a_json_tensor_fits_the_shape_it_says(data: object, shape: list[int], said: str) -> None:
    """Open Inference data is flat, or nested as its shape says."""
    with pytest.raises(InvalidInput) as caught:
        decode_tensor("x", "INT32", shape, data)
    assert said in str(caught.value)


@pytest.mark.parametrize("place", ["top", "inputs"])
def test_an_object_of_many_members_is_not_looked_up_member_by_member(place: str) -> None:
    """simdjson walks all of an object for each name: orjson reads it, and says the same."""
    many = {str(number): 1 for number in range(simdjson_reader.MAX_LOOKUPS + 1)}
    members = {"inputs": {"x": [[1.0] * 3000]}, **many} if place == "top" else {"inputs": many}
    body = orjson.dumps({**members, "id": "a" * simdjson_reader.MIN_BODY_BYTES})
    assert simdjson_reader.read_document(body) is None
