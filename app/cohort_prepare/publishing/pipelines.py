"""Checks of a pipeline before it is published; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cohort.errors import LoadFailed, quoted
from cohort.pipelines import NotDeclared, check_pipeline, files_named, read_pipeline
from cohort.repository import (
    MANIFEST_FILE,
    PIPELINE_FILE,
    SIGNATURE_FILE,
    VERSION_FILES,
    Found,
    scan,
)
from cohort.system.remote_address import is_remote
from cohort_prepare.failures import Rejected


class CheckedPipeline(NamedTuple):
    """A pipeline that can be published.

    files: Files next to it that it names.
    notes: Notes for users of the pipeline.
    """

    files: Sequence[str]
    notes: tuple[str, ...]


def check_pipeline_file(path: Path, name: str, to: str) -> CheckedPipeline:
    """Check the pipeline at `path` as a version of `name` in the models folder or address `to`.

    Models that are missing in the folder, or do not fit, are noted: they may be added later. Models
    at an address are not checked. Raises Rejected and OSError.
    """
    try:
        read_pipeline(path)
        files = files_named(path)
    except LoadFailed as error:
        raise Rejected(f"{path}: {error}") from error
    for file in files:
        if file in {PIPELINE_FILE, MANIFEST_FILE, SIGNATURE_FILE}:
            raise Rejected(f"{path}: it names {quoted(file)}, a reserved file name")
        if not (path.parent / file).is_file():
            raise Rejected(f"{path}: it names {file}, which is not in the same folder")
    if is_remote(to) or not Path(to).is_dir():
        return CheckedPipeline(files, ())
    snapshot = scan(Path(to), quiet=0, kinds=VERSION_FILES)
    try:
        check_pipeline(Found(path, path.parent, ""), snapshot, name)
    except (LoadFailed, NotDeclared) as error:
        return CheckedPipeline(files, (f"it cannot run with the models in {to}: {error}",))
    return CheckedPipeline(files, ())
