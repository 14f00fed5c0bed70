"""Files to serve a text model with: tokenizer, labels, and a config that names them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKENIZER_FILE, LABELS_FILE = "tokenizer.json", "labels.txt"

OF_A_TOKENIZER = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})

MAX_LENGTH = 1 << 20
"""Larger values in tokenizer settings mean no limit."""


@dataclass
class TextFiles:
    """Files that were written, and notes on them.

    files: File names.
    config: Keys `inputs` and `outputs` of config.yaml.
    notes: Notes for the user.
    """

    files: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def write_text_files(
    source: Path, folder: Path, *, inputs: Sequence[str], longest: int | None, pairs: bool
) -> TextFiles:
    """Write the tokenizer of a transformers folder as a single file.

    source: The folder, which may have no tokenizer.
    folder: Folder to write to.
    inputs: The model's inputs.
    longest: Maximum ids of the model; None if unknown.
    pairs: True if a row is a pair of texts.
    """
    made = TextFiles()
    if "input_ids" not in inputs:
        return made
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError) as error:
        made.notes.append(
            f"{source.name} has no tokenizer that transformers can read, so callers must send ids: "
            f"{' '.join(str(error).split())[:200]}"
        )
        return made
    if not tokenizer.is_fast:
        made.notes.append(
            f"{type(tokenizer).__name__} is written in Python and cannot be saved as "
            "tokenizer.json, so callers must send ids"
        )
        return made
    length = min(tokenizer.model_max_length, longest or MAX_LENGTH, _own_length(source))
    backend = tokenizer.backend_tokenizer
    if length < MAX_LENGTH:
        backend.enable_truncation(length, direction=tokenizer.truncation_side)
    if tokenizer.pad_token is not None:
        backend.enable_padding(
            direction=tokenizer.padding_side,
            pad_id=tokenizer.pad_token_id,
            pad_type_id=tokenizer.pad_token_type_id,
            pad_token=tokenizer.pad_token,
        )
    backend.save(str(folder / TOKENIZER_FILE))
    made.files.append(TOKENIZER_FILE)
    if others := set(inputs) - OF_A_TOKENIZER:
        made.notes.append(
            f"{TOKENIZER_FILE} was written, but no config, since the model has further inputs: "
            f"{', '.join(sorted(others))}"
        )
        return made
    text: dict[str, Any] = {"tokenizer": TOKENIZER_FILE}
    if length < MAX_LENGTH:
        text["max_length"] = length
    made.config["inputs"] = {"text": text | ({"pairs": True} if pairs else {})}
    return made


def _own_length(source: Path) -> int:
    """Return the maximum number of ids in sentence-transformers' settings."""
    try:
        settings = json.loads((source / "sentence_bert_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return MAX_LENGTH
    length = settings.get("max_seq_length") if isinstance(settings, dict) else None
    return length if isinstance(length, int) else MAX_LENGTH


def write_labels(made: TextFiles, labels: Sequence[str], config: Any, folder: Path) -> None:
    """Write the labels of a text classifier, and configure them for answers.

    labels: By column.
    config: The model's transformers config, which states if a text may have several labels.
    """
    lines = [" ".join(str(label).split()) for label in labels]
    (folder / LABELS_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    made.files.append(LABELS_FILE)
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    kind = {"sigmoid": True, "threshold": 0.5} if several else {"softmax": True}
    made.config["outputs"] = {"logits": {"labels": LABELS_FILE, **kind}}
