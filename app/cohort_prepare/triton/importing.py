"""Convert a config.pbtxt to a file for Cohort, and validate it before it is written."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from cohort.errors import quoted
from cohort.pipelines.document import parse_pipeline, parse_processing
from cohort.repository import CONFIG_FILE, PIPELINE_FILE, ConfigProblems, parse_model_config
from cohort.system.kept_files import write_whole
from cohort_prepare.failures import Misused
from cohort_prepare.triton.ensemble import pipeline
from cohort_prepare.triton.model_config import model_config
from cohort_prepare.triton.reading import Fields
from cohort_prepare.triton.text_format import MAX_BYTES, parse_text_format

SUFFIX = ".pbtxt"

ENSEMBLE = "ensemble"


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of converting a config.pbtxt.

    out: File that was written; None if the result is empty.
    kind: Name that the file must have.
    text: Content of the file.
    notes: Fields that were not converted, with advice.
    """

    out: Path | None
    kind: str
    text: str
    notes: list[str]


def import_config(path: Path, out: Path | None) -> Imported:
    """Convert a config.pbtxt, and write the result.

    out: The file; default None: a new pipeline.yaml or config.yaml next to it.

    Raises Misused, and OSError if a file cannot be read or written.
    """
    fields = Fields(parse_text_format(_text(path), path.name), path.name)
    kind = PIPELINE_FILE if _is_ensemble(fields) else CONFIG_FILE
    if kind == PIPELINE_FILE:
        tree, notes = pipeline(fields, path)
    else:
        tree, notes = model_config(fields, path.name)
    name = fields.text("name")
    if name and name != (folder := path.absolute().parent.name):
        notes.append(
            f"the model is named {quoted(name)}, but its folder {quoted(folder)}: Cohort uses the "
            "folder's name"
        )
    notes += fields.left_out()
    if not tree:
        return Imported(None, kind, "", notes)
    text = _yaml(tree)
    _check(text, kind, path.name)
    target = out or path.with_name(kind)
    if out is None and os.path.lexists(target):
        raise Misused(f"{target} already exists; use another file with --out")
    write_whole(target, f"# Converted from {path.name!a} by cohort convert.\n{text}")
    return Imported(target, kind, text, notes)


def _is_ensemble(fields: Fields) -> bool:
    named = ENSEMBLE in {fields.text("platform"), fields.text("backend")}
    return named or "ensemble_scheduling" in fields


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Misused(f"{path.name} is not UTF-8 text") from None


def _yaml(tree: dict[str, Any]) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.allow_unicode = True
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def _check(text: str, kind: str, file: str) -> None:
    """Validate the result. Raises Misused."""
    try:
        if kind == PIPELINE_FILE:
            parse_pipeline(text)
            parse_processing(text)
        else:
            parse_model_config(text, kind)
    except ConfigProblems as error:
        raise Misused(f"{file} has values that {kind} does not allow: {error}") from error
