"""The files of a language model's folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cohort.errors import LoadFailed
from cohort.generative.config import read_genai_config
from cohort.repository import CARD_FILE, CONFIG_FILE, GENAI_FILE, MANIFEST_FILE, SIGNATURE_FILE

OURS = {CONFIG_FILE, MANIFEST_FILE, SIGNATURE_FILE, CARD_FILE}
"""Files that are not part of a model."""


def describing_file(decoder: Path) -> Path:
    """Return the `genai_config.json` that describes an ONNX file, or else the file itself."""
    described = decoder.with_name(GENAI_FILE)
    if described.is_file():
        with suppress(LoadFailed):
            if read_genai_config(described).file == decoder.name:
                return described
    return decoder


def decoder_file(model: Path) -> Path:
    """Return the decoder of a `genai_config.json`, or else the file itself. Raises LoadFailed."""
    return model.with_name(read_genai_config(model).file) if model.name == GENAI_FILE else model


def model_files(model: Path) -> list[str]:
    """Return the names of the files next to a language model, with its own.

    Folders, hidden files, and files that Cohort wrote are left out.
    """
    return [
        one.name
        for one in sorted(model.parent.iterdir())
        if one.is_file() and one.name[0] != "." and one.name not in OURS
    ]
