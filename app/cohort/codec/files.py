"""Inputs sent as files: one whole body, or the parts of a form."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from cohort.codec.base64_json import is_stream, read_stream
from cohort.codec.binary import from_texts
from cohort.codec.json_body import parse_json
from cohort.codec.multipart import FormPart
from cohort.codec.npy import NPY, fit_array, fit_work, read_npy
from cohort.codec.predict_request import make_input
from cohort.errors import InvalidInput, UnsupportedMedia, quoted, quoted_names
from cohort.tensors import Array, Arrays, TensorSpec, check_names

FILE_BYTES = (1 << 31) - 1
"""Maximum bytes of an element in numpy."""


class File(NamedTuple):
    """A file sent for an input.

    name: The name of the input; None for the model's only input.
    media: Its media type, in lower case; "" for a plain value of a form.
    data: Its bytes.
    array: The array in a .npy file; None for any other file.
    """

    name: str | None
    media: str
    data: bytes
    array: Array | None = None


def whole_body(body: bytes, media: str) -> list[File]:
    """Return the body as the file of a model's only input. Raises InvalidInput."""
    return [File(None, media, body, read_npy(body) if media == NPY else None)]


def form_files(parts: Sequence[FormPart]) -> list[File]:
    """Return the parts of a form as named files. Raises InvalidInput."""
    return [_form_file(part) for part in parts]


def _form_file(part: FormPart) -> File:
    media = part.media or ("application/octet-stream" if part.filename else "")
    if media != NPY and not part.filename.lower().endswith(".npy"):
        return File(part.name, media, part.data)
    try:
        return File(part.name, NPY, part.data, read_npy(part.data))
    except InvalidInput as error:
        raise InvalidInput(f"part {quoted(part.name)}: {error}") from None


def files_work(files: Sequence[File]) -> int:
    """Estimate the cost of `read_files`, in bytes of JSON: 0 for one file used as is."""
    return sum([_work(file, alone=len(files) == 1) for file in files])


def _work(file: File, *, alone: bool) -> int:
    if file.array is not None:
        return fit_work(file.array)
    return 0 if alone and not _is_value(file) and not _is_text(file) else len(file.data)


def read_files(files: Sequence[File], specs: Sequence[TensorSpec]) -> Arrays:
    """Make arrays from files, for the inputs of the same names. Raises InvalidInput.

    Several files of one name are the rows of one input. `tensors.check_inputs` checks the shapes.
    """
    if len(files) == 1 and files[0].name is None:
        if len(specs) != 1:
            names = quoted_names(spec.name for spec in specs)
            raise InvalidInput(
                "a body with one file needs a model with one input; this one has "
                f"{names}: send multipart/form-data with a part of each name"
            )
        return {specs[0].name: specs[0].fit(_make(specs[0], files))}
    named: dict[str, list[File]] = {}
    for file in files:
        named.setdefault(file.name or "", []).append(file)
    check_names(specs, named)
    return {spec.name: spec.fit(_make(spec, named[spec.name])) for spec in specs}


def _make(spec: TensorSpec, files: Sequence[File]) -> Array:
    spec.dtype  # noqa: B018 - raises for what cannot be sent
    first = files[0]
    if any(file.array is not None for file in files):
        if len(files) > 1 or first.array is None:
            raise InvalidInput(f"input {quoted(spec.name)} must be one .npy file with all rows")
        return fit_array(spec, first.array)
    if spec.datatype == "BYTES" and first.media != "application/json":
        return _elements(spec, files)
    if is_stream(spec) and not _is_value(first):
        if len(files) > 1:
            raise InvalidInput(
                f"input {quoted(spec.name)} accepts one file per request, got {len(files)}"
            )
        return read_stream(first.data)
    values: list[object] = []
    for file in files:
        if not _is_value(file):
            raise _no_file(spec, file.media)
        try:
            values.append(parse_json(file.data))
        except InvalidInput as error:
            raise InvalidInput(f"part {quoted(spec.name)}: {error}") from None
    return make_input(spec, values[0] if len(values) == 1 else values)


def _is_value(file: File) -> bool:
    return file.media in {"", "application/json"}


def _is_text(file: File) -> bool:
    return file.media.startswith("text/")


def _elements(spec: TensorSpec, files: Sequence[File]) -> Array:
    """Make an element of BYTES from each file; open dimensions other than rows are 1."""
    count = len(files)
    shape = [count]
    if spec.shape is not None:
        shape = [size if isinstance(size, int) else 1 for size in spec.shape]
        if spec.rows_vary:
            shape[0] = count // max(prod(shape[1:]), 1)
    if prod(shape) != count:
        raise InvalidInput(
            f"input {quoted(spec.name)} must have shape {spec.shape_text}, and {count} "
            f"{'files are' if count > 1 else 'file is'} not {prod(shape)} elements"
        )
    if any(len(file.data) > FILE_BYTES for file in files):
        raise InvalidInput(f"input {quoted(spec.name)} has a file of more than {FILE_BYTES} bytes")
    if spec.files:
        return from_texts([file.data for file in files], files=True).reshape(shape)
    only = files[0].data
    if count == 1 and only and not _is_text(files[0]):
        return np.frombuffer(only, f"V{len(only)}").reshape(shape)  # without a copy
    return from_texts([file.data for file in files], spec.name).reshape(shape)


def _no_file(spec: TensorSpec, media: str) -> UnsupportedMedia:
    csv = ", or CSV to /invocations?model=NAME" if media == "text/csv" else ""
    return UnsupportedMedia(
        f"input {quoted(spec.name)} must be {spec.datatype} {spec.shape_text}, not a file of "
        f"{quoted(media)}. Send JSON, a .npy file ({NPY}), or the array's bytes to "
        f"/v2/models/…/infer with Inference-Header-Content-Length: 0{csv}. To send a picture, "
        "a sound or a text, describe the input in the model's config.yaml (image, audio, "
        "tokenizer). Models that decode files take BYTES, or UINT8 of one open dimension"
    )
