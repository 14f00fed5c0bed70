"""JSON Schemas that let editors check an operator's files. They are in the models folder.

`make reference` generates them from the types. A newer server replaces them.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

SCHEMAS_FOLDER = ".cohort"
"""Folder of the schemas in the models folder. The scan for models skips names with a dot."""

CONFIG_SCHEMA, ROLLOUTS_SCHEMA = "config.schema.json", "rollouts.schema.json"
PIPELINE_SCHEMA = "pipeline.schema.json"


def packaged(name: str, folder: str = "schemas") -> str:
    """Return the text of a file in app/cohort/cli/schemas, or in another `folder` there."""
    return files("cohort.cli").joinpath(folder, name).read_text(encoding="utf-8")


def keep_schemas(models: Path) -> None:
    """Write the schemas to the models folder if they differ. Raises OSError."""
    folder = models / SCHEMAS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_SCHEMA, ROLLOUTS_SCHEMA, PIPELINE_SCHEMA):
        path, text = folder / name, packaged(name)
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
            path.write_text(text, encoding="utf-8")


def schema_comment(file: Path, models: Path, name: str) -> str:
    """Return the comment that links a `file` to the schema `name`, by a relative path.

    Raises ValueError if there is no relative path, for example between Windows drives.
    """
    way = os.path.relpath((models / SCHEMAS_FOLDER / name).resolve(), file.resolve().parent)
    return f"# yaml-language-server: $schema={Path(way).as_posix()}\n"
