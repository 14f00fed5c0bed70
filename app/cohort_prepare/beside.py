"""Files that a converted model needs next to it: tokenizer, labels and config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from cohort.repository import MODEL_FILE
from cohort_prepare.failures import Misused
from cohort_prepare.source import SourceExport

HEAD = """\
# Inputs and outputs for callers. `cohort init NAME {name}` copies this and the files that it names.
"""


def check_beside(export: SourceExport, out: Path) -> None:
    """Raise Misused if a file that belongs to another model would be replaced."""
    for name in export.files:
        there = out.with_name(name)
        if there.is_file() and not out.is_file():
            raise Misused(
                f"{there} exists and may belong to another model: set --out to a file in a "
                f"separate folder, or delete {name}"
            )


def write_beside(export: SourceExport, folder: Path, out: Path) -> Sequence[Path]:
    """Write the files that belong next to a model; return their paths.

    folder: Folder with the files of `export`.
    out: The model. Its config is written next to it, or to MODEL/config.yaml, which a server reads,
        for MODEL/1/model.onnx, unless that file exists.
    """
    written = []
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in export.files:
        shutil.copyfile(folder / name, out.with_name(name))
        written.append(out.with_name(name))
    if export.config:
        config = out.with_suffix(".config.yaml")
        served = out.absolute().parent.parent / "config.yaml"
        if out.name == MODEL_FILE and out.absolute().parent.name.isdecimal():
            config = config if served.exists() else served
        text = "".join(
            f"{key}: {json.dumps(value, ensure_ascii=False)}\n"
            for key, value in export.config.items()
        )
        config.write_text(HEAD.format(name=out.name) + text, encoding="utf-8")
        written.append(config)
    return written
