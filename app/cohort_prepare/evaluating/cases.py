"""Inputs, and outputs expected for them, in `.npz` files: inputs by name, outputs as `output:NAME`.

Text is kept as numpy's fixed-width strings, since objects would be pickles.
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
"""Of all arrays of a file, uncompressed: a zip of a few kilobytes may hold any amount of zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """Rows to run a model with.

    inputs: Arrays by input name; axis 0 is the rows.
    outputs: What is expected for them, by output name; default none.
    """

    inputs: Arrays
    outputs: Arrays = field(default_factory=dict)

    @property
    def by_row(self) -> bool:
        """Whether all inputs have rows, as many each."""
        counts = {array.shape[:1] for array in self.inputs.values()}
        return len(counts) == 1 and () not in counts

    @property
    def rows(self) -> int:
        """How many there are; 1 where an input has no rows or they differ."""
        return len(next(iter(self.inputs.values()))) if self.by_row else 1

    def part(self, start: int, stop: int) -> Cases:
        """The rows from `start` up to `stop`; outputs that have no rows as they are."""
        outputs = {
            name: array[start:stop] if array.shape[:1] == (self.rows,) else array
            for name, array in self.outputs.items()
        }
        return Cases({name: array[start:stop] for name, array in self.inputs.items()}, outputs)

    def batches(self, size: int) -> Iterator[tuple[int, Cases]]:
        """Parts of up to `size` rows, each with its first row; all in one where not `by_row`."""
        if not self.by_row:
            yield 0, self
            return
        for start in range(0, self.rows, size):
            yield start, self.part(start, start + size)

    def repeated(self, rows: int) -> Arrays:
        """Inputs of `rows` rows: those that are there, again and again. Raises Misused for none."""
        if not self.rows:
            raise Misused("there are no rows to run the model with")
        places = np.arange(rows) % self.rows
        return {name: array[places] for name, array in self.inputs.items()}


def run_named(session: Session, inputs: Arrays) -> Arrays:
    """The outputs of a run, by name. Raises CohortError."""
    return by_name(session.outputs, session.run(inputs))


def run_alone(session: Session, inputs: Arrays) -> Arrays:
    """The outputs of rows that are run one by one, joined. Raises CohortError."""
    single = [run_named(session, row.inputs) for _, row in Cases(inputs).batches(1)]
    return {
        name: np.concatenate([np.atleast_1d(one[name]) for one in single]) for name in single[0]
    }


def find_influence(session: Session, requests: Sequence[Arrays]) -> str:
    """How rows of requests that share a run influence each other; "" if they do not."""
    stacking = plan_rows(session.inputs, session.outputs, session.rows)
    return influence(session.run, requests, session.outputs, stacking=stacking)


def read_cases(path: Path) -> Cases:
    """Read a `.npz`. Raises Misused where it is none, holds pickles, or is too large."""
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: restore_text(file[name]) for name in file.files}
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise Misused(
            f"{path} is no .npz file, or is truncated: {error}; "
            "numpy.savez(path, **{input_name: array}) writes one"
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
    """Text as fixed-width strings; anything else as it is."""
    return array.astype(str) if array.dtype == object else array


def restore_text(array: Array) -> Array:
    """Text as Python's strings in an object array, as models take it; anything else as it is."""
    return array.astype(object) if array.dtype.kind == "U" else array


def kind_of(array: Array) -> Kind:
    """What the elements are; "text" for what no tensor has."""
    known = BY_DTYPE.get(array.dtype)
    return known.kind if known else "text"


def in_datatype(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """The same values in another datatype, rounded to its precision.

    Unchanged if a value is outside its range, or if it holds other kinds of elements.
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
    """The cases for a model that takes `inputs`, numbers cast where that loses nothing.

    Raises Misused, naming the file, where names or shapes do not fit.
    """
    names = {spec.name for spec in inputs}
    for name in cases.inputs:
        if name not in names:
            raise Misused(
                f"{path} has {quoted(name)}, and the model no input of that name"
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
    """Read the right answer for each row from a `.npy`; default: of any number. Raises Misused."""
    try:
        with path.open("rb") as file:
            _check_array(str(path), file, path.stat().st_size)
            file.seek(0)
            labels: Array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise Misused(f"{path} is no .npy file: {error}; numpy.save writes one") from error
    if labels.size != (labels.size if rows is None else rows):
        raise Misused(
            f"{path} has labels of shape {list(labels.shape)} for {rows} rows: one for each is "
            "needed"
        )
    return restore_text(labels.reshape(-1))


def _check_size(path: Path) -> None:
    """Raise Misused, or ValueError, before memory is taken for what the file only promises."""
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        size = sum(one.file_size for one in members)
        if size > MAX_CASES_BYTES:
            raise Misused(
                f"{path} holds {size >> 20:,} MiB; at most {MAX_CASES_BYTES >> 20:,} MiB are read: "
                "take fewer rows"
            )
        if len({one.filename for one in members}) < len(members):
            raise ValueError("it has two arrays of one name")
        for one in members:
            with file.open(one) as member:
                _check_array(f"{path}: {one.filename}", member, one.file_size)


def _check_array(name: str, member: IO[bytes], size: int) -> None:
    """Raise ValueError unless an array is as large as its header says; Misused for objects."""
    version = np.lib.format.read_magic(member)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else (np.lib.format.read_array_header_2_0)
    )
    try:
        shape, _, dtype = read(member)
    except Exception as error:  # of Python's parser, which it is given to
        raise ValueError(f"{name} has a header that cannot be read") from error
    if dtype.hasobject:
        raise Misused(
            f"{name} holds Python objects, which are not read: save text as array.astype(str) and "
            "numbers with a numeric dtype"
        )
    if member.tell() + prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name} does not hold the array of shape {list(shape)} that it promises")


def as_arrays(values: Mapping[str, Array]) -> Arrays:
    """Outputs by name, text as models give it."""
    return {name: restore_text(np.asarray(value)) for name, value in values.items()}
