"""What a converted model needs beside its file: its tokenizer, its labels, and a config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from cohort.repository import MODEL_FILE
from cohort_prepare.failures import Misused
from cohort_prepare.source import SourceExport

HEAD = """\
# What callers send and get: `cohort init NAME {name}` takes it along, and the files that it names.
"""


def check_beside(export: SourceExport, out: Path) -> None:
    """Raise Misused where a file that belongs to another model would be replaced."""
    for name in export.files:
        there = out.with_name(name)
        if there.is_file() and not out.is_file():
            raise Misused(
                f"{there} is there, and may be another model's: name a file in a folder of its own "
                f"with --out, or delete {name}"
            )


def write_beside(export: SourceExport, folder: Path, out: Path) -> Sequence[Path]:
    """Write what belongs beside a model; the files that were written.

    folder: Where the files of `export` lie.
    out: The model. Its config goes beside it, or where a server reads it: MODEL/config.yaml for
        MODEL/1/model.onnx, unless there is one.
    """
    written = []
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
