"""Bodies of the simple API that are files.

Most are described in words. openapi-python-client warns of media types that it does not know, such
as application/x-npy and image/*. It writes code that fails if a body may be JSON or a form.
"""

from __future__ import annotations

from cohort.codec.base64_json import is_stream
from cohort.codec.npy import NPY
from cohort.http.media import FORM
from cohort.http.openapi.schemas import Schema, transportable
from cohort.operating import ServedModel


def takes_files(operation: Schema, served: ServedModel) -> None:
    """Document that an operation accepts arrays and files for the inputs of a version."""
    inputs = transportable(served.inputs)
    if not inputs:
        return
    content = operation["requestBody"]["content"]
    text = (
        f"A body of `Content-Type: {FORM}` has one part per input, named after it: a .npy file, "
        f"JSON, or a file. `Accept: {NPY}` requests one output as a .npy file."
    )
    if len(served.inputs) == 1:
        text += f" A body of `Content-Type: {NPY}` is the input in numpy.save's format."
        if is_stream(inputs[0]):
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        if is_stream(inputs[0]) or inputs[0].datatype == "BYTES":
            text += " Any other file, such as an image/png, is the input's bytes."
    operation["description"] += f"\n\n{text}"
