"""Arrays as `numpy.save` writes them."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn
from numpy.typing import NDArray

from cohort.codec.npy import MAX_HEADER_BYTES, fit_array, fit_work, read_npy, write_npy
from cohort.errors import DeadlineExceeded, InvalidInput
from cohort.tensors import BY_DTYPE, DATATYPES, TensorSpec

NUMBERS = st.sampled_from([row.dtype for row in DATATYPES if row.numpy_native and row.bits])


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_header(header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    width = 2 if version[0] == 1 else 4
    return b"\x93NUMPY" + version + len(header).to_bytes(width, "little") + header + data


def spec(datatype: str) -> TensorSpec:
    return TensorSpec("x", datatype, None)


@given(NUMBERS, st.data(), st.booleans(), st.sampled_from("<>"))
def test_what_numpy_saves_comes_out(
    dtype: np.dtype[Any], data: st.DataObject, fortran: bool, order: Any
) -> None:
    """This holds for each datatype and shape, in each byte order and memory order."""
    array = data.draw(hn.arrays(dtype, hn.array_shapes(min_dims=0, min_side=0, max_side=4)))
    sent = np.asarray(array.astype(dtype.newbyteorder(order)), order="F" if fortran else "C")
    read = read_npy(saved(sent))
    fitted = fit_array(spec(BY_DTYPE[dtype].name), read)
    assert fitted.shape == array.shape
    assert fitted.dtype == dtype
    assert fitted.flags.c_contiguous
    assert fitted.tobytes() == np.ascontiguousarray(array).tobytes()


@given(NUMBERS, st.data())
def test_what_is_written_numpy_loads(dtype: np.dtype[Any], data: st.DataObject) -> None:
    """It loads without pickles, also if the array is not contiguous."""
    array = data.draw(hn.arrays(dtype, hn.array_shapes(min_dims=0, min_side=0, max_side=4)))
    for one in (array, array.T):
        loaded = np.load(io.BytesIO(write_npy(one)), allow_pickle=False)
        assert (loaded.dtype, loaded.shape) == (one.dtype, one.shape)
        assert loaded.tobytes() == one.tobytes()


def test_an_array_in_order_is_not_copied() -> None:
    """It is read in place, so it has no work."""
    body = saved(np.ones((2, 3), "f4"))
    array = fit_array(spec("FP32"), read_npy(body))
    assert np.shares_memory(array, np.frombuffer(body, "u1"))
    assert fit_work(read_npy(body)) == 0
    assert fit_work(read_npy(saved(np.ones((2, 3), ">f4")))) == 24


@given(st.lists(st.text(), min_size=1))
def test_text_comes_out(words: list[str]) -> None:
    """numpy leaves out zeros at the end."""
    array = np.array(words)
    assert fit_array(spec("BYTES"), read_npy(saved(array))).tolist() == array.tolist()


def test_bytes_that_are_no_text_come_out() -> None:
    """They may be void, which keeps zeros at the end, or numpy's bytes."""
    raw = np.frombuffer(b"\xff\x00\x00\x00", "V2")
    assert fit_array(spec("BYTES"), read_npy(saved(raw))).tolist() == raw.tolist()
    two = np.array([b"\xff", b"\xfe"])
    assert fit_array(spec("BYTES"), read_npy(saved(two))).tolist() == [b"\xff", b"\xfe"]


def test_what_numpy_does_not_know_is_saved_as_bytes() -> None:
    """bfloat16 is one such type, and so are others of ml_dtypes with whole bytes."""
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    body = saved(array.view("V2"))
    assert fit_array(spec("BF16"), read_npy(body)).tolist() == array.tolist()
    with pytest.raises(InvalidInput, match=r"must be FP16, got .V2"):
        fit_array(spec("FP16"), read_npy(body))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"", "not descr, fortran_order and shape"),
        (b"\xff", "not descr"),
        (b"[" * 1000, "not descr"),
        (b"-" * 1000 + b"1", "not descr"),
        (b"__import__('os')", "not descr"),
        (b"{'descr': '<f4', 'fortran_order': False}", "not descr"),
        (b"{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "no boolean fortran_order"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", "no tuple shape"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "invalid shape"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", "invalid shape"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (2**62,)}", "not descr"),
        (
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2)}",
            "too many elements",
        ),
        (
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 0)}",
            "too many elements",
        ),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775,)}", "but 0 follow"),
        (
            b"{'descr': '<f3', 'fortran_order': False, 'shape': ()}",
            "is of '<f3', which no input can be",
        ),
        (b"{'descr': '|V0', 'fortran_order': False, 'shape': (1,)}", "which no input can be"),
        (b"{'descr': '|V999999999', 'fortran_order': False, 'shape': (1,)}", "but 0 follow"),
        (
            b"{'descr': '|V9999999999', 'fortran_order': False, 'shape': (1,)}",
            "which no input can be",
        ),
        (b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "never loaded"),
        (b"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "which no input can be"),
        (b"{'descr': 7, 'fortran_order': False, 'shape': (1,)}", "which no input can be"),
        (b" " * (MAX_HEADER_BYTES + 1), "more than 1024"),
    ],
)
def test_a_header_that_is_none_is_told(header: bytes, says: str) -> None:
    """No header runs code or allocates more than the body holds."""
    for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        with pytest.raises(InvalidInput, match=says):
            read_npy(with_header(header, version=version))


@pytest.mark.parametrize("body", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00ab"])
def test_a_file_cut_short_is_told(body: bytes) -> None:
    """It is refused also if it ends within its first bytes."""
    with pytest.raises(InvalidInput):
        read_npy(body)


def test_truth_is_zero_or_one() -> None:
    """Any other byte is not a boolean, and operators would read it differently."""
    body = saved(np.zeros(4, np.bool_))
    with pytest.raises(InvalidInput, match="only bytes 0 and 1"):
        fit_array(spec("BOOL"), read_npy(body[:-1] + b"\x02"))


@pytest.mark.parametrize("points", [0xD800, 0x110000])
def test_text_that_is_no_unicode_is_told(points: int) -> None:
    """numpy's strings may hold anything."""
    array = np.array(["a"]).view("<u4")
    array[0] = points
    with pytest.raises(InvalidInput, match="not Unicode"):
        fit_array(spec("BYTES"), read_npy(saved(array.view("<U1"))))


@given(st.binary(max_size=300), st.sampled_from([row.name for row in DATATYPES]))
def test_no_bytes_do_more_than_be_refused(junk: bytes, datatype: str) -> None:
    """Any bytes are read or raise InvalidInput: as a file, as a header, and after a header."""
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}"
    for body in (junk, with_header(junk), with_header(head, junk)):
        with suppress(InvalidInput):
            fit_array(spec(datatype), read_npy(body))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(2**19, dtype="f8"),
        np.arange(2**19, dtype="f8").reshape(2, -1).T,
        np.arange(2**19, dtype="f8").reshape(2, 2, -1)[:, ::-1],
        np.zeros((3, 0), "f4"),
        np.array(5, "i4"),
    ],
    ids=["flat", "turned", "wide", "empty", "scalar"],
)
def test_what_is_written_numpy_reads(array: NDArray[Any]) -> None:
    """An array written in parts or at once is read in C order."""
    read = np.load(io.BytesIO(write_npy(array)))
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)
    assert read.flags.c_contiguous


def test_the_writing_of_a_long_array_ends_with_its_time() -> None:
    """The deadline ends it between two parts."""
    looks = iter([None, None])

    def check() -> None:
        if next(looks, "late") == "late":
            raise DeadlineExceeded(1)

    with pytest.raises(DeadlineExceeded):
        write_npy(np.zeros(2**20), check)
