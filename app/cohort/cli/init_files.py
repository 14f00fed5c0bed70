"""Files and config keys that `cohort init` finds next to a model's file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.cli import options
from cohort.repository import GENAI_FILE, MODEL_FILE

if TYPE_CHECKING:
    from cohort.tensors import TensorSpec

LABELS_FILE = "labels.txt"

KEYS = ("inputs", "outputs", "session")
"""Keys of `NAME.config.yaml`, which `cohort convert` and `prepare` write next to NAME.onnx."""


@dataclass
class InitFiles:
    """Files for a version's folder, by name, and config keys with their values.

    model: The name that the model's file gets.
    read_from: The config next to the model that has the keys; None if there is no such file.
    """

    files: dict[str, Path] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    read_from: Path | None = None
    model: str = MODEL_FILE

    def uncommented(self, text: str) -> str:
        """Replace the commented examples in the packaged config.yaml by the keys."""
        for key, value in self.keys.items():
            line = f"{key}: {json.dumps(value, ensure_ascii=False)}"
            text = _set_key(text, key, line)
        return text


def _set_key(text: str, key: str, line: str) -> str:
    return re.sub(rf"^# {key}:.*$", lambda _: line, text, count=1, flags=re.MULTILINE)


def file_in(path: Path) -> Path:
    """Return the model's file: that of a folder, and that of a decoder's language model.

    Exits if a folder does not have one.
    """
    from cohort.generative.version_folder import describing_file

    if not path.is_dir():
        return describing_file(path)
    found = [name for name in (GENAI_FILE, MODEL_FILE) if (path / name).is_file()]
    if not found:
        options.fail(f"{path.absolute()} has neither {GENAI_FILE} nor {MODEL_FILE}")
    return path / found[0]


def files_beside(file: Path | None, labels: Path | None, *, transform: bool) -> InitFiles:
    """Return the files to copy with a model's file. Exits on an error.

    labels: A file with a label per line, or None.
    transform: True if the model gets a transform, which language models cannot have.
    """
    from cohort.generative.factory import is_language_model

    if file is not None and is_language_model(file):
        if labels is not None or transform:
            options.fail("--labels and --transform do not apply to language models")
        return _files_of_language_model(file)
    found = InitFiles()
    config = None if file is None else file.with_suffix(".config.yaml")
    if config is not None and config.is_file():
        found.read_from = config
        found.keys = _read(config)
        for name in _named(found.keys):
            if not (path := config.with_name(name)).is_file():
                options.fail(f"{config} names {name}, which is not in the same folder")
            found.files[name] = path
    if labels is not None:
        _add_labels(found, file, labels)
    return found


def _files_of_language_model(file: Path) -> InitFiles:
    from cohort.generative.version_folder import model_files

    found = InitFiles(model=file.name if file.name == GENAI_FILE else MODEL_FILE)
    names = [one for one in model_files(file) if one not in {file.name, found.model}]
    found.files = {name: file.with_name(name) for name in names}
    return found


def _read(config: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        read = YAML(typ="safe").load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError) as error:
        options.fail(f"{config} cannot be read: {error}")
    if not isinstance(read, dict) or not all(isinstance(read.get(key, {}), dict) for key in KEYS):
        options.fail(f"{config} must have the keys {', '.join(KEYS)}, as written by cohort convert")
    return {key: read[key] for key in KEYS if read.get(key)}


def _named(keys: Mapping[str, Any]) -> list[str]:
    """Return the names of files that the config's inputs and outputs use."""
    inputs = keys.get("inputs", {}).values()
    names = [one.get(key) for one in inputs for key in ("tokenizer", "categories")]
    names += [one.get("labels") for one in keys.get("outputs", {}).values()]
    return [name for name in names if isinstance(name, str) and Path(name).suffix]


def _add_labels(found: InitFiles, file: Path | None, labels: Path) -> None:
    from cohort.errors import quoted, quoted_names
    from cohort.session import read_signature

    if file is None:
        options.fail("--labels needs a model file: cohort init NAME FILE.onnx --labels …")
    try:
        count = len(labels.read_text("utf-8-sig").rstrip().split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        options.fail(f"{labels} cannot be read as text: {error}")
    signature = read_signature(file)
    outputs = () if signature is None else signature.outputs
    fitting = [spec for spec in outputs if _may_have(spec, count)]
    exactly = [spec for spec in fitting if spec.shape and spec.shape[-1] == count] or fitting
    if len(exactly) != 1:
        shown = ", ".join(f"{one.name} {one.datatype} {one.shape_text}" for one in outputs)
        which = (
            f"several outputs match: {quoted_names(one.name for one in exactly)}"
            if exactly
            else f"no float output has {count} columns"
        )
        options.fail(
            f"{labels.name} has {count} labels, and {which}; {quoted(file.name)} gives {shown}. "
            "Name it in config.yaml: outputs: {OUTPUT: {labels: labels.txt}}"
        )
    found.files[LABELS_FILE] = labels
    output = found.keys.setdefault("outputs", {}).setdefault(exactly[0].name, {})
    output["labels"] = LABELS_FILE


def _may_have(spec: TensorSpec, count: int) -> bool:
    floats = spec.datatype in {"FP16", "BF16", "FP32", "FP64"}
    columns = spec.shape[-1] if spec.shape is not None and len(spec.shape) > 1 else 0
    return floats and (not isinstance(columns, int) or columns == count)
