"""Arrays that pass between processes: any of them come back, and no place leads out of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from cohort.system.array_file import ArrayFile
from cohort.tensors import DATATYPES

MOST = 1 << 20

NUMBERS = st.sampled_from(
    [row.dtype for row in DATATYPES if row.numpy_native and row.kind != "text"]
).flatmap(lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0)))


@st.composite
def texts(draw: st.DrawFn) -> Any:
    """Return an array of texts and bytes."""
    elements = draw(st.lists(st.text() | st.binary(), max_size=8))
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


@pytest.fixture(scope="module")
def file() -> Iterator[ArrayFile]:
    """A file in memory."""
    opened = ArrayFile()
    yield opened
    opened.close()


@given(st.dictionaries(st.text(), NUMBERS | texts(), max_size=4))
def test_what_is_written_is_read(file: ArrayFile, arrays: dict[str, Any]) -> None:
    """Every datatype and shape survives, texts and bytes included, also in the other process."""
    places: list[Any] = [list(place) for place in file.write(arrays)]
    other = ArrayFile(file.path)
    try:
        found = other.read([[*one[:2], list(one[2]), *one[3:]] for one in places], MOST)
    finally:
        other.close()
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        if array.dtype.kind == "O":
            assert found[name].tolist() == array.tolist()
        else:
            assert found[name].tobytes() == array.tobytes()


SIZES = st.integers(-(1 << 65), 1 << 65) | st.integers(0, 64)
JSON = st.recursive(st.none() | st.booleans() | SIZES | st.text(), st.lists, max_leaves=6)
PLACES = st.tuples(
    st.text(), st.sampled_from([row.name for row in DATATYPES]) | st.text(),
    st.lists(SIZES, max_size=3), SIZES, SIZES,
).map(list)  # fmt: skip


@given(st.lists(PLACES | JSON, max_size=3) | JSON, st.binary(max_size=200))
def test_any_places_at_all_are_arrays_or_refused(file: ArrayFile, places: Any, data: bytes) -> None:
    """Nothing but a ValueError, and never more bytes than the file has."""
    file.write({"data": np.frombuffer(data, np.uint8)})
    try:
        found = file.read(places, MOST)
    except ValueError:
        return
    for array in found.values():
        assert array.dtype.kind == "O" or array.nbytes <= len(data)


def test_more_than_is_allowed_is_refused(file: ArrayFile) -> None:
    """The sum of all arrays counts."""
    places = file.write({"a": np.zeros(60, np.uint8), "b": np.zeros(60, np.uint8)})
    wanted = [[*one[:2], list(one[2]), *one[3:]] for one in places]
    assert len(file.read(wanted, 120)) == 2
    with pytest.raises(ValueError, match="more than 119"):
        file.read(wanted, 119)
