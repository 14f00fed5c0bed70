"""The JSON Schemas of an operator's files, beside the models, for editors.

They are made of the types (`make reference`) and belong to the server: newer ones replace them.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

SCHEMAS_FOLDER = ".cohort"
"""In the models folder; what begins with a dot is not looked at when models are looked for."""

CONFIG_SCHEMA, ROLLOUTS_SCHEMA = "config.schema.json", "rollouts.schema.json"
PIPELINE_SCHEMA = "pipeline.schema.json"


def packaged(name: str, folder: str = "schemas") -> str:
    """The text of one of the files in app/cohort/cli/schemas, or in another `folder` there."""
    return files("cohort.cli").joinpath(folder, name).read_text(encoding="utf-8")


def keep_schemas(models: Path) -> None:
    """Write the schemas beside the models, where they are not those already. Raises OSError."""
    folder = models / SCHEMAS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_SCHEMA, ROLLOUTS_SCHEMA, PIPELINE_SCHEMA):
        path, text = folder / name, packaged(name)
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
            path.write_text(text, encoding="utf-8")


def schema_comment(file: Path, models: Path, name: str) -> str:
    """The line by which editors find the schema `name` of a `file`, by its way from there.

    Raises ValueError where there is none, from one drive to another.
    """
    way = os.path.relpath((models / SCHEMAS_FOLDER / name).resolve(), file.resolve().parent)
    return f"# yaml-language-server: $schema={Path(way).as_posix()}\n"
