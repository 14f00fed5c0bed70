"""JSON bodies of `/predict` and V1: arrays as orjson and numpy make them, or a 400.

An input is a byte that chooses the model's input, and a body.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from cohort.codec import PredictRequest, decode_inputs, pack_rows, parse_v1
from cohort.codec.json_tensors import FLOATS
from cohort.codec.missing_values import HAVE_NAN
from cohort.codec.rows import MAX_ROWS_BODY_BYTES
from cohort.errors import InvalidInput
from cohort.http.predict.rows import read_predict_rows
from cohort.tensors import BY_NAME, Array, TensorSpec
from tests.codec.bodies import ALWAYS, NEVER, same, simdjson_from

SPECS = [
    TensorSpec("x", datatype, shape)
    for datatype in sorted(BY_NAME)
    for shape in (None, ("N",), ("N", 2), ("N", "M", 3))
]
BODIES = (
    b'{"input": [[1, 2]]}',
    b'{"inputs": {"x": [[1.5, -2e3], [0, 18446744073709551615]]}, "id": "a"}',
    b'{"inputs": {"x": [[18446744073709551615]]}}',
    b'{"model": "m", "input": [["a", "\\u00e9"], [true, null]]}',
    b'{"inputs": {"x": [[[1, 2, 3]], [[4, 5, 6]]]}, "outputs": ["y"], "timeout_ms": 5}',
    b'{"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}',
    b'{"instances": [[{"b64": "YQ=="}, "b"]], "signature_name": "serving_default"}',
    b'{"inputs": [[1, 2]]}',
    b'{"input": {"x": [[1, 2]]}}',
    b'{"input": [[1e308, 65504, 65520, 3.5e38]], "version": 1, "parameters": {"a": true}}',
)
SEEDS = [
    bytes([number]) + body
    for body in BODIES
    for number in range(0, len(SPECS), 7)
]  # fmt: skip
TOKENS = (
    *(b'"input":', b'"inputs":{"x":', b'"instances":', b'{"b64":"YQ=="}', b'"outputs":["y"]'),
    *(b"[[", b"]]", b"[],", b"true", b"null", b"1e400", b"-0.0", b"9223372036854775808"),
    *(b"18446744073709551616", b'"x\\u0000"', b'"\\ud800"', b"\xef\xbb\xbf", b"1e-50", b"65520"),
)


def check(data: bytes) -> None:
    """Fail if the readers differ, if an array is not what was sent, or for any other error."""
    if not data:
        return
    spec, body = SPECS[data[0] % len(SPECS)], data[1:]
    results = []
    for size in (NEVER, ALWAYS):
        with simdjson_from(size):
            results.append(decoded(body, spec))
    one, other = results
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert same(one, other)
        document = orjson.loads(body)
        inputs = document.get("inputs")
        check_values(one, spec.datatype, document["input"] if inputs is None else inputs["x"])
        check_row(body, spec, one)
    with suppress(InvalidInput):
        parse_v1(body).decode([spec])


def decoded(body: bytes, spec: TensorSpec) -> Array | str:
    """Return the array, or the error's text."""
    try:
        return decode_inputs(PredictRequest.parse(body), [spec])["x"]
    except InvalidInput as error:
        return str(error)


def check_values(array: Array, datatype: str, sent: Any) -> None:
    """Assert that every element is the number or text sent, rounded to the datatype.

    A text that is not in a list is the only element.
    """
    if isinstance(sent, str):
        for _ in array.shape:
            sent = [sent]
    flat, level = array.ravel(), [sent]
    for _ in array.shape:
        assert all(type(one) is list for one in level)
        level = [leaf for one in level for leaf in one]
    assert len(flat) == len(level)
    for got, leaf in zip(flat, level, strict=True):
        if array.dtype.kind in "Ob":
            assert type(leaf) is (str if array.dtype.kind == "O" else bool)
            assert got == leaf
        else:
            if leaf is None and datatype in HAVE_NAN:
                assert got != got, leaf  # noqa: PLR0124 - null is NaN
                continue
            assert type(leaf) in (int, float)
            if datatype in FLOATS:
                leaf = np.array(leaf, np.float64).astype(array.dtype)  # noqa: PLW2901 - rounded
            assert got == leaf, leaf


def check_row(body: bytes, spec: TensorSpec, array: Array) -> None:
    """Assert that a body of rows is packed to the same array, or left to the general reader."""
    if len(body) > MAX_ROWS_BODY_BYTES or len(spec.shape or ()) != 2:
        return
    _, asked = read_predict_rows(body)
    if asked is None or spec.datatype not in PACKED:
        return
    if asked.name not in (None, spec.name) or len(asked.values) != 2 * asked.rows:
        return
    packed = pack_rows([body], [asked.values], spec, asked.rows)
    assert packed is None or same(packed, array)


PACKED = frozenset(
    name for name in BY_NAME if name.lstrip("U").startswith("INT") and len(name.lstrip("U")) > 4
) | {"FP32", "FP64", "INT8", "UINT8"}
