"""Putting a version into a models folder: all of it under the next number, or nothing."""

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
"""Of the folder that becomes a version: scans pass over it."""


@contextmanager
def folder_for_version(model: Path) -> Iterator[Path]:
    """A folder for a version's files in the folder of its model, gone unless it was placed.

    So is the model's folder, if it was made for this. Raises OSError.
    """
    made = [folder for folder in (model, model.parent) if not folder.exists()]
    model.mkdir(parents=True, exist_ok=True)
    sweep(model, _PREFIX)
    folder = Path(tempfile.mkdtemp(dir=model, prefix=_PREFIX))
    try:
        folder.chmod(0o777 & ~_umask())  # the server may be another user
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for one in made:
            with suppress(OSError):  # it is not empty
                one.rmdir()


def place(folder: Path) -> int:
    """Give a folder of `folder_for_version` the next number, and return that.

    Its files are on the disk before it has the number. Two who publish at once get two numbers.
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
            target.mkdir()  # whoever makes it has the number
        except FileExistsError:
            continue
        try:
            folder.rename(target)  # takes the place of an empty folder only
        except BaseException:
            with suppress(OSError):
                target.rmdir()
            raise
        _sync(model)
        return number


def version_numbers(model: Path) -> list[int]:
    """The numbers that a model's folder has, whatever is in them."""
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
