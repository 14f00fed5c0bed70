"""Bodies other than JSON: our reader must return the array that numpy loads."""

from __future__ import annotations

import io
import json
from contextlib import suppress

import numpy as np

from cohort.codec import parse_json
from cohort.codec.csv_table import read_csv
from cohort.codec.files import form_files, read_files, whole_body
from cohort.codec.multipart import split_parts
from cohort.codec.npy import NPY, read_npy
from cohort.codec.tables import table_of
from cohort.errors import InvalidInput
from cohort.tensors import DATATYPES, TensorSpec

FORM = "multipart/form-data; boundary=b"
SPECS = [
    [TensorSpec("x", "FP32", ("N", 2))],
    [TensorSpec("x", "BYTES", ("N",))],
    [TensorSpec("x", "UINT8", ("bytes",))],
    [TensorSpec("x", "BYTES", ("N", 1)), TensorSpec("y", "INT64", ("N", 1))],
    [TensorSpec("x", row.name, None) for row in DATATYPES[:1]],
]


def _saved(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def _part(name: str, data: bytes, filename: str = "") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data


SAVED = [
    _saved(one)
    for one in (
        np.ones((2, 2), "<f4"),
        np.asfortranarray(np.ones((2, 3), ">f4")),
        np.array(["ab", "ä"]),
        np.array([b"ab", b"\xff"]),
        np.frombuffer(b"\xff\0", "V2"),
        np.array([True]),
    )
]
FORMS = [
    _part("x", b"[[1,2]]") + b"\r\n--b--",
    _part("x", SAVED[0], "a.npy") + b"\r\n" + _part("y", b"[[1]]") + b"\r\n--b--",
    _part("x", b"\x89PNG", "a.png") + b"\r\n" + _part("x", b"\x89JPG", "b.png") + b"\r\n--b--",
]
TABLES: list[bytes] = [
    b"x,y\n1,2\n",
    b'1,"2"\r\n3,\n',
    json.dumps({"dataframe_split": {"columns": ["x", "y"], "data": [["a", 1]]}}).encode(),
    json.dumps({"dataframe_records": [{"x": 1, "y": 2}]}).encode(),
]
SEEDS = [bytes([kind]) + one for kind, some in enumerate((SAVED, FORMS, TABLES)) for one in some]
TOKENS = (
    *(b"\x93NUMPY\x01\x00", b"'descr': '<f4'", b"'fortran_order': True", b"'shape': (2, 2)", b"|O"),
    *(
        b"\r\n--b\r\n",
        b"\r\n--b--",
        b'; name="x"',
        b"Content-Disposition: form-data",
        b'"x"',
        b"b64",
    ),
)


def check(data: bytes) -> None:
    """Fail if another error than ours is raised, or if numpy reads another array."""
    kind, body = data[:1], data[1:]
    if kind == b"\0":
        _check_saved(body)
    for specs in SPECS:
        with suppress(InvalidInput):
            if kind == b"\0":
                read_files(whole_body(body, NPY), specs)
            elif kind == b"\1":
                read_files(form_files(split_parts(body, FORM)), specs)
            else:
                read_csv(body, specs)
        with suppress(InvalidInput):
            document = parse_json(body)
            if kind == b"\2" and isinstance(document, dict):
                for key in document.keys() & {"dataframe_split", "dataframe_records"}:
                    table_of(document, key).decode(specs)


def _check_saved(body: bytes) -> None:
    try:
        ours = read_npy(body)
    except InvalidInput:
        return
    theirs = np.load(io.BytesIO(body), allow_pickle=False, max_header_size=1 << 16)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()
