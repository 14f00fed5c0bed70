"""simdjson reads long bodies to the same arrays and errors as orjson."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec import PredictRequest, decode_inputs, encode_tensor, simdjson_reader
from cohort.errors import InvalidInput
from cohort.tensors import BY_NAME, Array, TensorSpec
from tests.codec.bodies import (
    ALWAYS,
    NEVER,
    arrays,
    same,
    simdjson_from,
)


def test_a_parser_is_not_shared_while_a_request_holds_it() -> None:
    """Long requests open at once each keep their own values, also when one was let go of."""
    specs = [TensorSpec("x", "INT64", ("N",))]
    with simdjson_from(ALWAYS):
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


def test_long_bodies_are_read_on_many_threads_at_once() -> None:
    """Bodies share nothing: each has its own parser."""
    spec = [TensorSpec("input", "FP32", ("N", 500))]

    def work(seed: int) -> bool:
        array = np.random.default_rng(seed).random((20, 500), dtype=np.float32)
        body = orjson.dumps({"input": array}, option=orjson.OPT_SERIALIZE_NUMPY)
        return same(decode_inputs(PredictRequest.parse(body), spec)["input"], array)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def outcome(body: bytes, specs: list[TensorSpec], size: int) -> tuple[Any, ...]:
    """Return a body's arrays bit by bit, or the error that refuses it."""
    with simdjson_from(size):
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
def test_both_readers_give_the_same_arrays_and_errors(
    value: object, other: object, spec: Any, other_spec: Any, outputs: bool
) -> None:
    """For any two inputs, simdjson and orjson agree in every bit and every word."""
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
def test_bodies_around_the_threshold_are_read_the_same(array: Array, pad: int) -> None:
    """Bodies of about the length from which simdjson reads them give the same by both readers."""
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
def test_both_readers_treat_any_bytes_the_same(body: bytes) -> None:
    """Random bytes raise nothing but InvalidInput, with the same message by both."""
    for datatype in ("FP32", "INT64", "BYTES"):
        specs = [TensorSpec("x", datatype, ("N", "M"))]
        assert outcome(body, specs, NEVER) == outcome(body, specs, ALWAYS)


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_a_truncated_body_is_refused(size: int) -> None:
    """Every beginning of a valid body is InvalidInput, and only that."""
    body = orjson.dumps(
        {
            "model": "é", "version": 1, "inputs": {"x": [[1.5, -2e3], [0, 4]], "s": ["a\n", "😀"]},
            "outputs": ["y"], "timeout_ms": 1.5, "parameters": {"user": "u", "f": True},
        }
    )  # fmt: skip
    with simdjson_from(size):
        PredictRequest.parse(body)
        for end in range(len(body)):
            with pytest.raises(InvalidInput):
                PredictRequest.parse(body[:end])


@pytest.mark.parametrize("place", ["top", "inputs"])
def test_an_object_of_many_members_is_not_looked_up_member_by_member(place: str) -> None:
    """simdjson searches the whole object for each name, so the body is left to orjson."""
    many = {str(number): 1 for number in range(simdjson_reader.MAX_LOOKUPS + 1)}
    members = {"inputs": {"x": [[1.0] * 3000]}, **many} if place == "top" else {"inputs": many}
    body = orjson.dumps({**members, "id": "a" * simdjson_reader.MIN_BODY_BYTES})
    assert simdjson_reader.read_document(body) is None
