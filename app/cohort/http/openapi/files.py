"""The bodies of the simple API that are files.

Most are told in words: openapi-python-client warns of media types that it does not know, of
application/x-npy and image/* too, and writes code that does not run where JSON may be a form, too.
"""

from __future__ import annotations

from cohort.codec.base64_json import is_stream
from cohort.codec.npy import NPY
from cohort.http.media import FORM
from cohort.http.openapi.schemas import Schema, transportable
from cohort.operating import ServedModel


def takes_files(operation: Schema, served: ServedModel) -> None:
    """Say that an operation takes arrays and files for the inputs of a version."""
    inputs = transportable(served.inputs)
    if not inputs:
        return
    content = operation["requestBody"]["content"]
    said = (
        f"A body of `Content-Type: {FORM}` has a part for each input, of its name: a .npy file, "
        f"JSON, or a file. `Accept: {NPY}` asks for one output as a .npy file."
    )
    if len(served.inputs) == 1:
        said += f" A body of `Content-Type: {NPY}` is the input as numpy.save writes it."
        if is_stream(inputs[0]):
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        if is_stream(inputs[0]) or inputs[0].datatype == "BYTES":
            said += " Any other file, such as an image/png, is the input's bytes."
    operation["description"] += f"\n\n{said}"
