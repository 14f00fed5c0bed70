"""Bodies of predict requests, read by orjson and by simdjson, and arrays of any datatype."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cohort.codec import (
    PredictRequest,
    cutting,
    decode_inputs,
    json_body,
    long_json,
    predict_request,
    simdjson_reader,
)
from cohort.errors import InvalidInput
from cohort.tensors import BY_NAME, DATATYPES, EXTENSION, Array, TensorSpec

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
def simdjson_from(size: int) -> Iterator[None]:
    """Give bodies from `size` bytes to simdjson, whatever the usual threshold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simdjson_reader, "MIN_BODY_BYTES", size)
        yield


@contextmanager
def cut_into(size: int) -> Iterator[None]:
    """Read any body in pieces, cut out of blocks of `size` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cutting, long_json):
            patch.setattr(module, "BLOCK_BYTES", size)
        patch.setattr(long_json, "SHORT_BYTES", 8)
        for reader in (json_body, predict_request):
            patch.setattr(reader, "CUT_FROM_BYTES", 0)
        yield


NEVER, ALWAYS = 1 << 62, 0
BLOCKS = (14, 16, 24, 64)


def decode(value: object, datatype: str = "FP32", shape: Any = ("N", "M")) -> Array:
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    body = b'{"inputs": {"x": ' + body + b"}}"
    return decode_inputs(PredictRequest.parse(body), [TensorSpec("x", datatype, shape)])["x"]


def refusal(value: object, datatype: str = "FP32", shape: Any = ("N", "M")) -> str:
    """Say how all ways refuse `value`: with the same words, but for the byte of a slip."""
    said = []
    for way in ways():
        with way, pytest.raises(InvalidInput) as caught:
            decode(value, datatype, shape)
        said.append(re.sub(r": line \d.*|, near byte .*", "", str(caught.value)))
    assert len(set(said)) == 1
    return said[0]


def ways() -> Iterator[AbstractContextManager[None]]:
    """Yield the ways to read a body: with orjson, with simdjson, and in pieces."""
    yield simdjson_from(NEVER)
    yield simdjson_from(ALWAYS)
    for size in BLOCKS:
        yield cut_into(size)


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
    """Return True if two arrays have the same dtype, shape and bits: -0.0 is not 0.0."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == np.object_:
        return bool((left == right).all())
    return left.tobytes() == right.tobytes()
