"""Apply the grafts of a recipe's sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cohort_prepare.beside import HEAD
from cohort_prepare.evaluating.cases import plain_text
from cohort_prepare.grafting.grafted import Grafted
from cohort_prepare.grafting.image_input import add_image_input
from cohort_prepare.grafting.labels import add_labels
from cohort_prepare.grafting.tokenizer import add_tokenizer
from cohort_prepare.recipe import AddImageInputSection, AddTokenizerSection, GraftSection


def do_graft(section: GraftSection, before: Path, out: Path) -> Grafted:
    """Apply a section. If it raises Misused or Rejected, no file is left at `out`."""
    try:
        return _do(section, before, out)
    except BaseException:
        for file in (out, out.with_name(f"{out.name}.data")):
            file.unlink(missing_ok=True)
        raise


def _do(section: GraftSection, before: Path, out: Path) -> Grafted:
    match section:
        case AddImageInputSection():
            return add_image_input(
                before, out, image=section.image, name=section.name, of=section.of
            )
        case AddTokenizerSection():
            return add_tokenizer(
                before,
                out,
                tokenizer=Path(section.tokenizer),
                max_length=section.max_length,
                name=section.name,
                texts=None if section.texts is None else Path(section.texts),
            )
    return add_labels(before, out, labels=Path(section.labels), output=section.output)


def write_example(grafted: Grafted, model: Path) -> Path | None:
    """Write a .npz of inputs next to the model; return None if other inputs are unknown."""
    inputs = onnx.load(model, load_external_data=False).graph.input
    if {one.name for one in inputs} != grafted.example.keys():
        return None
    path = model.with_suffix(".npz")
    with path.open("wb") as file:
        arrays: dict[str, Any] = {n: plain_text(a) for n, a in grafted.example.items()}
        np.savez(file, **arrays)
    return path


def write_config(config: Mapping[str, Any], path: Path, model: str) -> None:
    """Write the keys that the model needs in its config.yaml."""
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in config.items()]
    path.write_text(HEAD.format(name=model) + "".join(lines), encoding="utf-8")
