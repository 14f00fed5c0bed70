"""Files that newcomers put in the wrong place, and the right place for each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from cohort.errors import MODEL_NAME
from cohort.repository.model_config import CONFIG_FILE
from cohort.repository.version_files import MODEL_FILE

MAX_NAMED = 8
"""Limit of files that are named per folder; more names would not help."""

MAX_ENTRIES = 100
"""Limit of entries that each scan reads in a version's folder without a model."""

_ELSEWHERE = re.compile(r"config\.ya?ml(?:\.txt)?", re.IGNORECASE)
_OTHER_FORMATS = (
    ".pt",
    ".pth",
    ".pkl",
    ".joblib",
    ".h5",
    ".keras",
    ".tflite",
    ".pb",
    ".safetensors",
)


def models_beside(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield model files directly in the models folder, and the fix for each."""
    for file in islice(filter(_is_model, files), MAX_NAMED):
        stem = file[: -len(".onnx")]
        name = stem if MODEL_NAME.fullmatch(stem) and stem.lower() != "model" else "<name>"
        yield file, f"is not looked for here; move it to {name}/1/model.onnx"


def not_pulled(files: Sequence[str], folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield .dvc files whose data is not next to them, and the command that fetches it."""
    there = {*files, *folders}
    for file in files:
        name = file.removesuffix(".dvc")
        if name != file and name not in there:
            yield file, f"{name} is not here: `dvc pull` fetches it"


def config_elsewhere(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield files of a model's folder that look like its config but have the wrong name."""
    if CONFIG_FILE not in files:
        for file in filter(_ELSEWHERE.fullmatch, files):
            yield file, f"is not read; rename it to {CONFIG_FILE}"


def bad_number(name: str) -> str:
    """Return the fix for a version's folder that is not named by a number."""
    if named := re.fullmatch(r"[vV]\.?([1-9][0-9]{0,17})", name):
        return f"a version's folder must be named by its number alone; rename it to {named[1]}"
    if re.fullmatch("0+[1-9][0-9]*", name):
        return f"a version must not have leading zeros; rename it to {name.lstrip('0')}"
    if name == "0":
        return "a version must be >= 1"
    return "a version's folder must be named by its number, such as 1"


def model_without_version(name: str, files: Sequence[str]) -> str:
    """Return the right place for the model of a folder without versions."""
    loose = MODEL_FILE if MODEL_FILE in files else next(filter(_is_model, files), "")
    if not loose:
        return f", such as {name}/1/model.onnx"
    if name.isdecimal():
        return (
            f"; move {loose} to {name}/1/model.onnx, or, if this is a version of a model, let "
            "COHORT_MODELS name the folder above"
        )
    renamed = "" if loose == MODEL_FILE else MODEL_FILE
    return f"; move {loose} to {name}/1/{renamed}"


def model_in_version(folder: str) -> str:
    """Return advice on a version's folder without model.onnx, from its files. Raises OSError."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
    if "model.onnx.dvc" in names:
        return ": `dvc pull` fetches it"
    if found := [name for name in names if _is_model(name)]:
        which = found[0] if len(found) == 1 else f"one of {', '.join(found[:MAX_NAMED])}"
        return f"; rename {which} to model.onnx"
    for name in names:
        if os.path.isfile(f"{folder}/{name}/model.onnx"):  # noqa: PTH113 - as in version_files
            return f"; move what is in {name}/ one folder up"
        if name.endswith(_OTHER_FORMATS):
            return f"; export {name} to ONNX"
    return ""


def _is_model(file: str) -> bool:
    return file.lower().endswith(".onnx") and not file.startswith(".")
