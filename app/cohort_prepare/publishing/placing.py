"""Place a version in a models folder atomically, under the next number."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cohort.repository import VERSION_NUMBER
from cohort_prepare.onnx_files import sweep

_PREFIX = ".publishing-"
"""Prefix of a folder that becomes a version; scans skip it."""


@contextmanager
def folder_for_version(model: Path) -> Iterator[Path]:
    """Yield a folder for a version's files in its model's folder; delete it unless it was placed.

    The model's folder is deleted as well if it was created here. Raises OSError.
    """
    made = [folder for folder in (model, model.parent) if not folder.exists()]
    model.mkdir(parents=True, exist_ok=True)
    sweep(model, _PREFIX)
    folder = Path(tempfile.mkdtemp(dir=model, prefix=_PREFIX))
    try:
        folder.chmod(0o777 & ~_umask())  # the server may run as another user
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for one in made:
            with suppress(OSError):  # not empty
                one.rmdir()


def place(folder: Path) -> int:
    """Rename a folder of `folder_for_version` to the next number, and return the number.

    Its files are flushed to disk before. Concurrent publishers get different numbers.
    """
    model = folder.parent
    for file in folder.rglob("*"):
        _sync(file)
    _sync(folder)
    number = max(version_numbers(model), default=0)
    while True:
        number += 1
        target = model / str(number)
        try:
            target.mkdir()  # creating it reserves the number
        except FileExistsError:
            continue
        try:
            folder.rename(target)  # replaces an empty folder only
        except BaseException:
            with suppress(OSError):
                target.rmdir()
            raise
        _sync(model)
        return number


def version_numbers(model: Path) -> list[int]:
    """Return the version numbers in a model's folder, even of empty folders."""
    try:
        return [int(one.name) for one in model.iterdir() if VERSION_NUMBER.fullmatch(one.name)]
    except FileNotFoundError:
        return []


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
