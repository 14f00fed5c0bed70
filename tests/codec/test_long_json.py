"""Long bodies, which are read in pieces, give what short ones give."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cohort.codec import PredictRequest, decode_inputs, parse_v1
from cohort.codec.json_tensors import MAX_TEXTS
from cohort.codec.long_json import CUT_FROM_BYTES, LongList, read_long
from cohort.errors import InvalidInput
from cohort.http.v2.message import parse_infer
from cohort.open_inference.inference import decode_input
from cohort.tensors import Arrays, TensorSpec
from tests.codec.bodies import BLOCKS, cut_into
from tests.examples import examples

texts = st.text(st.sampled_from('a,"\\[]{}: é中😀\n\0'), max_size=40)
keys = st.text(st.sampled_from('a,"\\[{é'), max_size=3)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=60,
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """JSON with optional escapes, or with some bytes added or removed."""
    text = orjson.dumps(draw(values), option=draw(st.sampled_from([0, orjson.OPT_INDENT_2])))
    if draw(st.booleans()):  # escaped where it need not be
        text = text.replace("中".encode(), b"\\u4e2d").replace("😀".encode(), b"\\ud83d\\ude00")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        slip = draw(st.sampled_from([b"", *[bytes([byte]) for byte in b',"[]{}\\ 1']]))
        text = text[:at] + slip + text[at + draw(st.integers(0, 1)) :]
    return text


def plain(value: object) -> object:
    """All of a value, with nothing left for later."""
    match value:
        case LongList():
            return [plain(one) for portion in value.portions() for one in portion.elements()]
        case list():
            return [plain(one) for one in value]
        case dict():
            return {key: plain(one) for key, one in value.items()}
    return value


@settings(max_examples=examples(150))
@given(text=documents(), block=st.sampled_from(BLOCKS))
def test_pieces_are_read_as_orjson_reads_the_whole(text: bytes, block: int) -> None:
    """The same values, the last of a repeated key among them; and what is not JSON is refused."""
    with cut_into(block):
        try:
            wanted = orjson.dumps(orjson.loads(text))
        except orjson.JSONDecodeError:
            with pytest.raises(InvalidInput, match="not valid JSON"):
                plain(read_long(text))
        else:
            assert orjson.dumps(plain(read_long(text))) == wanted


def outcome(read: Callable[[bytes], Arrays], text: bytes) -> object:
    """Return the arrays, or the error's text."""
    try:
        arrays = read(text)
    except InvalidInput as error:
        return str(error)
    return {name: (one.dtype, one.shape, repr(one.tolist())) for name, one in arrays.items()}


LEAVES = {"FP32": -1.25, "INT8": 7, "BYTES": "word, ["}
WRONG = [True, None, 300.5, {"a": 1}]


def with_slip(value: Any, leaf: object, draw: st.DrawFn) -> Any:
    """A value with one thing wrong somewhere: an element, or the shape."""
    if not isinstance(value, list):
        return draw(st.sampled_from([*WRONG, [leaf]]))
    if not value or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([leaf, [], [leaf], [[leaf]]]))
    at = draw(st.integers(0, len(value) - 1))
    return [*value[:at], with_slip(value[at], leaf, draw), *value[at + 1 :]]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Any]:
    """A datatype and nested lists of it, even or with one slip."""
    datatype, leaf = draw(st.sampled_from(list(LEAVES.items())))
    in_base64 = datatype == "BYTES" and draw(st.booleans())  # which only V1 takes
    value: Any = {"b64": "YQ=="} if in_base64 else leaf
    for size in draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)):
        value = [value] * size
    slips = not in_base64 and draw(st.booleans())
    return datatype, with_slip(value, leaf, draw) if slips else value


def by_predict(spec: TensorSpec, text: bytes) -> Arrays:
    return decode_inputs(PredictRequest.parse(b'{"inputs": {"x": ' + text + b"}}"), [spec])


def by_tutorial(spec: TensorSpec, text: bytes) -> Arrays:
    return decode_inputs(PredictRequest.parse(b'{"input": ' + text + b"}"), [spec])


def by_columns(spec: TensorSpec, text: bytes) -> Arrays:
    return parse_v1(b'{"inputs": {"x": ' + text + b"}}").decode([spec])


def by_rows(spec: TensorSpec, text: bytes) -> Arrays:
    rows = b",".join(b'{"x": ' + orjson.dumps(row) + b"}" for row in orjson.loads(text))
    return parse_v1(b'{"instances": [' + rows + b"]}").decode([spec])


def by_plain_rows(spec: TensorSpec, text: bytes) -> Arrays:
    return parse_v1(b'{"instances": ' + text + b"}").decode([spec])


def by_v2(spec: TensorSpec, text: bytes) -> Arrays:
    shape = orjson.dumps(list(np.shape(orjson.loads(text))))
    about = b'"name": "x", "datatype": "%b", "shape": %b' % (spec.datatype.encode(), shape)
    request = parse_infer(b'{"inputs": [{' + about + b', "data": ' + text + b"}]}")
    return {"x": decode_input(spec, request.inputs["x"])}


@pytest.mark.parametrize(
    "read", [by_predict, by_tutorial, by_columns, by_rows, by_plain_rows, by_v2]
)
@settings(max_examples=examples(60))
@given(tensor=tensors(), block=st.sampled_from(BLOCKS))
def test_pieces_make_the_arrays_of_the_whole(
    read: Callable[[TensorSpec, bytes], Arrays], tensor: tuple[str, Any], block: int
) -> None:
    """Every API reads the same arrays, and refuses the same mistake with the same words."""
    datatype, value = tensor
    spec, text = TensorSpec("x", datatype, None), orjson.dumps(value)
    assume(isinstance(value, list) or read is not by_rows)
    assume(is_even(value) or read is not by_v2)
    wanted = outcome(partial(read, spec), text)
    with cut_into(block):
        found = outcome(partial(read, spec), text)
    # If lists differ in length and depth, either may be reported.
    assert found == wanted or ("is ragged" in str(found) and "is ragged" in str(wanted))


def is_even(value: Any) -> bool:
    try:
        np.shape(value)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs": {"x": [%b1]}, oops}',
        b'{"inputs": {"x": [%b1, oops, 1]}}',
        b'{"inputs": {"x": [1, oops, %b1]}}',
        b'{"id": "%b", "inputs": {"x": [oops]}}',
    ],
)
def test_what_is_no_json_is_found_by_its_byte(text: bytes) -> None:
    """The position is right in a long list, after one, and after a long string."""
    body = text % (b"1, " * CUT_FROM_BYTES)
    with pytest.raises(InvalidInput) as caught:
        decode_inputs(PredictRequest.parse(body), [TensorSpec("x", "FP32", None)])
    place = int(str(caught.value).rpartition("near byte ")[2])
    assert abs(place - body.index(b"oops")) <= 1


MANY = 20_000


@pytest.mark.parametrize(
    "document",
    [
        {"outputs": ["abcdefghijklm"] * MANY},
        {"parameters": {f"abcdefghijk{number}": 1 for number in range(MANY)}},
        {"parameters": {"a": {f"abcdefghijk{number}": 1 for number in range(MANY)}}},
        {f"abcdefghijk{number}": 1 for number in range(MANY)},
    ],
)
def test_more_than_a_few_members_are_refused_whatever_they_are(document: Any) -> None:
    """A long body has tensors and few other members."""
    with pytest.raises(InvalidInput, match="more than 10000 members"):
        PredictRequest.parse(orjson.dumps({"input": [1], **document}))


def test_objects_deep_in_one_another_are_refused() -> None:
    """They are read one within the other, and nothing we take has them."""
    deep = b'{"a": ' * 100 + b"[%b]" % b"1, ".ljust(CUT_FROM_BYTES, b" ") + b"}" * 100
    with pytest.raises(InvalidInput, match="more than 16 nested objects"):
        PredictRequest.parse(deep)


@pytest.mark.parametrize("filler", [b" ", b"1"])
def test_long_texts_that_are_no_values_are_refused(filler: bytes) -> None:
    """Blanks and digits of more than a megabyte cannot be read in parts."""
    body = b'{"input": [1, ' + filler * (1 << 23) + b"2]}"
    with pytest.raises(InvalidInput, match="of one number or space"):
        decode_inputs(PredictRequest.parse(body), [TensorSpec("x", "FP32", None)])


@pytest.mark.parametrize("character", ["a", "é", "中", "😀", '"', "\\", "\n", "\0", "\\😀"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_one_long_string_is_read_in_parts(character: str, ascii_only: bool) -> None:
    """No part ends within a character, whether it is written by one byte or by twelve."""
    written = len(json.dumps(character, ensure_ascii=ascii_only).encode()) - 2
    for before in range(12):
        text = "b" * before + character * (2 * CUT_FROM_BYTES // written)
        body = json.dumps({"input": [text]}, ensure_ascii=ascii_only).encode()
        arrays = by_plain_rows(TensorSpec("x", "BYTES", None), body[len('{"input": ') : -1])
        assert arrays["x"].tolist() == [text]


@pytest.mark.parametrize("read", [by_predict, by_columns, by_plain_rows, by_v2])
def test_elements_of_bytes_are_as_many_as_the_runtime_takes_at_once(
    read: Callable[[TensorSpec, bytes], Arrays],
) -> None:
    """One more element is refused before the rest is read."""
    spec = TensorSpec("x", "BYTES", None)
    most = b"[" + b",".join([b'"a"'] * MAX_TEXTS) + b"]"
    assert read(spec, most)["x"].shape == (MAX_TEXTS,)
    with pytest.raises(InvalidInput, match="more than the 262144 elements of BYTES"):
        read(spec, most[:-1] + b',"a"]')
