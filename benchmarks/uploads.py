"""Requests whose body is a .npy file, or a form with one."""

from __future__ import annotations

from benchmarks import load
from benchmarks.lane import Kind
from benchmarks.workloads import Workload
from cohort.codec.npy import NPY, write_npy

BOUNDARY = "0123456789abcdef"


def npy_bodies(workload: Workload, path: str) -> Kind:
    """Requests at `path` whose body is the file of a workload's only input."""
    return Kind("npy", _files(workload), (path,), (f"Content-Type: {NPY}",), script=load.SCRIPT)


def npy_forms(workload: Workload, path: str, field: str) -> Kind:
    """Requests at `path` with a form, whose only `field` is that file."""
    head = (
        f"--{BOUNDARY}\r\n"
        f'Content-Disposition: form-data; name="{field}"; filename="{field}.npy"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    tail = f"\r\n--{BOUNDARY}--\r\n".encode()
    return Kind(
        "form", [head + file + tail for file in _files(workload)], (path,),
        (f"Content-Type: multipart/form-data; boundary={BOUNDARY}",), script=load.SCRIPT,
    )  # fmt: skip


def _files(workload: Workload) -> list[bytes]:
    return [write_npy(next(iter(inputs.values()))) for inputs in workload.requests()]
