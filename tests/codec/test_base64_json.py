"""Bytes in JSON: `{"b64": "…"}`."""

from __future__ import annotations

from base64 import b64encode, encodebytes, urlsafe_b64encode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec.base64_json import DECODED_AT_ONCE, decode_base64
from cohort.codec.predict_request import PredictRequest, decode_inputs
from cohort.errors import InvalidInput
from cohort.tensors import Array, TensorSpec

WORDS = TensorSpec("x", "BYTES", ("N",))
FILE = TensorSpec("x", "UINT8", ("bytes",))


def b64(data: bytes) -> dict[str, str]:
    return {"b64": b64encode(data).decode()}


def read(value: Any, spec: TensorSpec) -> Array:
    return decode_inputs(PredictRequest({"x": value}), [spec])["x"]


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=1), st.booleans())
def test_bytes_of_one_length_come_out(elements: list[bytes], plain: bool) -> None:
    """They come out as text next to strings, and otherwise as bytes."""
    words = [b"abc"] * plain
    found = read([*map(b64, elements), *["abc"] * plain], WORDS)
    expected = [*elements, *words]
    got = [one if isinstance(one, bytes) else one.encode() for one in found.tolist()]
    assert got == expected


@given(st.lists(st.text(), min_size=1))
def test_text_of_any_length_comes_out(elements: list[str]) -> None:
    """The array equals that of the same strings."""
    found = read([b64(one.encode()) for one in elements], WORDS)
    assert found.dtype == np.object_
    assert found.tolist() == elements


def test_bytes_of_other_lengths_are_told() -> None:
    """The runtime takes them one at a time."""
    with pytest.raises(InvalidInput, match="differ in length"):
        read([b64(b"\xff"), b64(b"ab")], WORDS)


def test_a_file_becomes_an_array_of_its_bytes() -> None:
    """The model takes bytes as numbers; in a list the object is refused."""
    assert read(b64(b"\xff\0a"), FILE).tolist() == [255, 0, 97]
    with pytest.raises(InvalidInput, match="must be UINT8, got an object"):
        read([b64(b"a")], FILE)


@pytest.mark.parametrize("size", [0, 1, DECODED_AT_ONCE * 3 // 4, DECODED_AT_ONCE + 1])
def test_long_base64_is_decoded_in_parts(size: int) -> None:
    """The parts decode to the same bytes."""
    data = np.random.default_rng(1).bytes(size)
    assert decode_base64("x", b64(data)) == data


@pytest.mark.parametrize("size", [*range(9), DECODED_AT_ONCE * 3 // 4 + 1, DECODED_AT_ONCE + 1])
def test_base64_is_read_as_encoders_write_it(size: int) -> None:
    """Encoders write it for URLs, in MIME's lines, without padding, or in all these ways."""
    data = np.random.default_rng(size).bytes(size)
    for text in (urlsafe_b64encode(data).decode(), encodebytes(data).decode()):
        for one in (text, text.replace("\n", "\r\n"), text.replace("=", "")):
            assert decode_base64("x", {"b64": one}) == data


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "ab=",
        "YQ=",
        "YQ===",
        "YWI==",
        "YQ==YQ==",
        "ab\0c",
        "!!!!",
        "é",
        "A" * (DECODED_AT_ONCE - 1) + "=" + "A" * 8,
    ],
)
def test_what_is_no_base64_is_told(text: str) -> None:
    """Padding in the middle of a long text is refused as well."""
    with pytest.raises(InvalidInput, match="not base64"):
        decode_base64("x", {"b64": text})
