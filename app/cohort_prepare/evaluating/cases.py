"""Inputs and expected outputs in `.npz` files: inputs by name, outputs as `output:NAME`.

Text is stored as fixed-width strings of numpy, since objects would be pickled.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from cohort.errors import InvalidInput, available, did_you_mean, quoted
from cohort.profiling import influence, plan_rows
from cohort.session import Session
from cohort.tensors import BY_DTYPE, Array, Arrays, Kind, TensorSpec, by_name
from cohort_prepare.failures import Misused

OUTPUT = "output:"

MAX_CASES_BYTES = 4 << 30
"""For all arrays of a file, uncompressed: a small zip file may expand without limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """Rows to run a model with.

    inputs: Arrays by input name; axis 0 is the rows.
    outputs: Expected outputs by name; default none.
    """

    inputs: Arrays
    outputs: Arrays = field(default_factory=dict)

    @property
    def by_row(self) -> bool:
        """True if all inputs have the same number of rows."""
        counts = {array.shape[:1] for array in self.inputs.values()}
        return len(counts) == 1 and () not in counts

    @property
    def rows(self) -> int:
        """Number of rows; 1 if inputs have no rows, or different numbers."""
        return len(next(iter(self.inputs.values()))) if self.by_row else 1

    def part(self, start: int, stop: int) -> Cases:
        """Return the rows from `start` to `stop`; outputs without rows are kept whole."""
        outputs = {
            name: array[start:stop] if array.shape[:1] == (self.rows,) else array
            for name, array in self.outputs.items()
        }
        return Cases({name: array[start:stop] for name, array in self.inputs.items()}, outputs)

    def batches(self, size: int) -> Iterator[tuple[int, Cases]]:
        """Yield parts of up to `size` rows with their first row; one part if not `by_row`."""
        if not self.by_row:
            yield 0, self
            return
        for start in range(0, self.rows, size):
            yield start, self.part(start, start + size)

    def repeated(self, rows: int) -> Arrays:
        """Return inputs of `rows` rows, repeated as needed. Raises Misused if there are none."""
        if not self.rows:
            raise Misused("there are no rows to run the model with")
        places = np.arange(rows) % self.rows
        return {name: array[places] for name, array in self.inputs.items()}


def run_named(session: Session, inputs: Arrays) -> Arrays:
    """Run the model; return outputs by name. Raises CohortError."""
    return by_name(session.outputs, session.run(inputs))


def run_alone(session: Session, inputs: Arrays) -> Arrays:
    """Run rows one by one; return their outputs, concatenated. Raises CohortError."""
    single = [run_named(session, row.inputs) for _, row in Cases(inputs).batches(1)]
    return {
        name: np.concatenate([np.atleast_1d(one[name]) for one in single]) for name in single[0]
    }


def find_influence(session: Session, requests: Sequence[Arrays]) -> str:
    """Describe how rows of requests influence each other in a batch; "" if they do not."""
    stacking = plan_rows(session.inputs, session.outputs, session.rows)
    return influence(session.run, requests, session.outputs, stacking=stacking)


def read_cases(path: Path) -> Cases:
    """Read a `.npz`. Raises Misused if it is invalid, has pickles, or is too large."""
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: restore_text(file[name]) for name in file.files}
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise Misused(
            f"{path} is not an .npz file, or is truncated: {error}; write it with "
            "numpy.savez(path, **{input_name: array})"
        ) from error
    outputs = {n.removeprefix(OUTPUT): a for n, a in arrays.items() if n.startswith(OUTPUT)}
    inputs = {n: a for n, a in arrays.items() if not n.startswith(OUTPUT)}
    if not inputs:
        raise Misused(f"{path} has no inputs{available(arrays)}")
    return Cases(inputs, outputs)


def write_cases(path: Path, cases: Cases) -> None:
    """Write a `.npz` that `read_cases` reads. Raises OSError."""
    arrays = {**cases.inputs, **{OUTPUT + name: array for name, array in cases.outputs.items()}}
    with path.open("wb") as file:
        np.savez_compressed(file, **{n: plain_text(a) for n, a in arrays.items()})  # type: ignore[arg-type]


def plain_text(array: Array) -> Array:
    """Convert text to fixed-width strings; return other arrays unchanged."""
    return array.astype(str) if array.dtype == object else array


def restore_text(array: Array) -> Array:
    """Convert text to Python strings in an object array; return other arrays unchanged."""
    return array.astype(object) if array.dtype.kind == "U" else array


def kind_of(array: Array) -> Kind:
    """Return the kind of elements; "text" for types that tensors do not have."""
    known = BY_DTYPE.get(array.dtype)
    return known.kind if known else "text"


def in_datatype(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Convert to another datatype, rounding to its precision.

    Returns the array unchanged if a value is out of range, or the kind differs.
    """
    kinds = kind_of(array), kind_of(np.empty(0, dtype))
    if array.dtype == dtype or "text" in kinds:
        return array
    if kinds[0] != kinds[1] and not np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    kept = np.isfinite(cast) == np.isfinite(array) if kinds[1] == "float" else cast == array
    return cast if np.all(kept) else array


def fit_cases(cases: Cases, inputs: Sequence[TensorSpec], path: Path) -> Cases:
    """Return the cases for a model with `inputs`; numbers are cast if no value changes.

    Raises Misused with the file's name if names or shapes do not fit.
    """
    names = {spec.name for spec in inputs}
    for name in cases.inputs:
        if name not in names:
            raise Misused(
                f"{path} has {quoted(name)}, but the model has no such input"
                f"{did_you_mean(name, names)}"
            )
    fitted: Arrays = {}
    for spec in inputs:
        if spec.name not in cases.inputs:
            raise Misused(f"{path}: input {quoted(spec.name)} is missing")
        array = cases.inputs[spec.name]
        if spec.transportable:
            array = in_datatype(array, spec.dtype)
        try:
            spec.check(array)
        except InvalidInput as error:
            raise Misused(f"{path}: {error}") from error
        fitted[spec.name] = array
    return Cases(fitted, cases.outputs)


def read_labels(path: Path, rows: int | None = None) -> Array:
    """Read the correct answers from a `.npy`; default: for any number of rows. Raises Misused."""
    try:
        with path.open("rb") as file:
            _check_array(str(path), file, path.stat().st_size)
            file.seek(0)
            labels: Array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise Misused(f"{path} is not an .npy file: {error}; write it with numpy.save") from error
    if labels.size != (labels.size if rows is None else rows):
        raise Misused(
            f"{path} has labels of shape {list(labels.shape)}, but {rows} rows need one each"
        )
    return restore_text(labels.reshape(-1))


def _check_size(path: Path) -> None:
    """Raise Misused or ValueError for arrays that are too large, before memory is allocated."""
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        size = sum(one.file_size for one in members)
        if size > MAX_CASES_BYTES:
            raise Misused(
                f"{path} has {size >> 20:,} MiB; the limit is {MAX_CASES_BYTES >> 20:,} MiB: use "
                "fewer rows"
            )
        if len({one.filename for one in members}) < len(members):
            raise ValueError("it has two arrays of the same name")
        for one in members:
            with file.open(one) as member:
                _check_array(f"{path}: {one.filename}", member, one.file_size)


def _check_array(name: str, member: IO[bytes], size: int) -> None:
    """Raise ValueError unless an array's size matches its header; Misused for objects."""
    version = np.lib.format.read_magic(member)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else (np.lib.format.read_array_header_2_0)
    )
    try:
        shape, _, dtype = read(member)
    except Exception as error:  # numpy parses it with Python's parser
        raise ValueError(f"{name} has a header that cannot be read") from error
    if dtype.hasobject:
        raise Misused(
            f"{name} has Python objects, which are not supported: save text as array.astype(str) "
            "and numbers with a numeric dtype"
        )
    if member.tell() + prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name} does not match the shape {list(shape)} in its header")


def as_arrays(values: Mapping[str, Array]) -> Arrays:
    """Return outputs by name, with text as models return it."""
    return {name: restore_text(np.asarray(value)) for name, value in values.items()}
