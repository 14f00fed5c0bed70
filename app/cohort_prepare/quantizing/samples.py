"""Read rows to calibrate with and to measure on, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cohort.codec import PredictRequest, decode_inputs, decode_tensor, parse_json
from cohort.errors import InvalidInput, quoted, shortened
from cohort.tensors import Array, Arrays, TensorSpec, check_inputs
from cohort_prepare.evaluating.cases import Cases, fit_cases, read_cases
from cohort_prepare.failures import Misused

ROWS_AT_ONCE = 32

MAX_RECORDED = 64 << 20
"""Maximum bytes of a recorded request: a server's default limit."""

RECORDED = (".jsonl", ".ndjson")


def read_samples(path: Path, inputs: Sequence[TensorSpec]) -> Iterator[Arrays]:
    """Yield batches of up to ROWS_AT_ONCE rows for a model with `inputs`.

    path: A `.npz` with inputs by name, or recorded requests for `/predict` or
        `/v2/models/…/infer`, one JSON per line. Or a folder of those and, for a model with one
        input, of `.npy` files; one file is in memory at a time.

    If the model's first dimension is fixed, every batch has that many rows, and a rest is dropped.
    Raises Misused with the file's name, also if it has no rows.
    """
    count = 0
    for batch in _batches(path, inputs):
        count += 1
        yield batch
    if not count:
        raise Misused(f"{path} has no rows: save at least one input in it")


def _batches(path: Path, inputs: Sequence[TensorSpec]) -> Iterator[Arrays]:
    if path.is_dir():
        known = {".npz", ".npy", *RECORDED}
        files = sorted(one for one in path.iterdir() if one.suffix in known)
        if not files:
            raise Misused(f"{path} has no .npz, .npy or .jsonl files")
    else:
        files = [path]
    for file in files:
        if file.suffix in RECORDED:
            yield from _joined(_recorded(file, inputs), _fixed_rows(inputs) or ROWS_AT_ONCE)
        elif file.suffix == ".npy" and path.is_dir():
            yield from _cut(_single(file, inputs), inputs, file)
        elif file.suffix == ".npz":
            yield from _cut(read_cases(file), inputs, file)
        else:
            raise Misused(
                f"{file} must be a .npz file with the inputs by name, a .jsonl file with a request "
                "per line, or a folder of those"
            )


def _fixed_rows(inputs: Sequence[TensorSpec]) -> int | None:
    """Return the fixed number of rows of a run; None if it is variable."""
    sizes = [spec.shape[0] for spec in inputs if spec.shape]
    return next((size for size in sizes if isinstance(size, int)), None)


def _cut(cases: Cases, inputs: Sequence[TensorSpec], path: Path) -> Iterator[Arrays]:
    fixed = _fixed_rows(inputs)
    for _, part in cases.batches(fixed or ROWS_AT_ONCE):
        if not fixed or part.rows == fixed or cases.rows < fixed:
            yield fit_cases(part, inputs, path).inputs


def _single(path: Path, inputs: Sequence[TensorSpec]) -> Cases:
    if len(inputs) != 1:
        raise Misused(
            f"{path}: a .npy file needs a model with one input; this one has {len(inputs)}: "
            "write .npz files with the inputs by name"
        )
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise Misused(f"{path} is not a .npy file of numbers: {error}") from error
    return Cases({inputs[0].name: array})


def _recorded(path: Path, inputs: Sequence[TensorSpec]) -> Iterator[Arrays]:
    """Yield the inputs of requests, one per line."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_RECORDED + 1):
                number += 1
                if len(line) > MAX_RECORDED:
                    raise Misused(f"{path}:{number} is longer than {MAX_RECORDED >> 20} MiB")
                if not line.strip():
                    continue
                try:
                    arrays = _inputs_of(line, inputs)
                    check_inputs(inputs, arrays)
                except InvalidInput as error:
                    raise Misused(f"{path}:{number}: {error}") from error
                yield arrays
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror or error}") from error


def _inputs_of(line: bytes, inputs: Sequence[TensorSpec]) -> Arrays:
    document = parse_json(line)
    given = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(given, list):
        return decode_inputs(PredictRequest.from_document(document, line), inputs)
    return dict(_tensor_of(one) for one in given)


def _tensor_of(given: Any) -> tuple[str, Array]:
    """Decode an input of `/v2/models/…/infer`."""
    try:
        name, datatype, shape = given["name"], given["datatype"], given["shape"]
        data = given["data"]
    except (KeyError, TypeError):
        raise InvalidInput(
            f"an input must have name, datatype, shape and data, got {shortened(repr(given))}"
        ) from None
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        raise InvalidInput(f"input {quoted(str(name))} has a wrong name, datatype or shape")
    return name, decode_tensor(name, datatype, shape, data)


def _joined(requests: Iterable[Arrays], rows: int) -> Iterator[Arrays]:
    """Join consecutive requests with rows of the same shape into batches of up to `rows`."""
    held: list[Arrays] = []
    count, layout = 0, None
    for request in requests:
        own = {name: array.shape[1:] for name, array in request.items()}
        sizes = {array.shape[0] if array.ndim else None for array in request.values()}
        more = sizes.pop() if len(sizes) == 1 else None
        if held and (more is None or own != layout or count + more > rows):
            yield _stacked(held)
            held, count = [], 0
        if more is None:
            yield request
            continue
        held.append(request)
        count, layout = count + more, own
    if held:
        yield _stacked(held)


def _stacked(requests: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}
