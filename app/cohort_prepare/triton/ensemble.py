"""Convert an `ensemble_scheduling` to a pipeline.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import MODEL_NAME, did_you_mean, quoted
from cohort.pipelines.document import MAX_STEPS
from cohort_prepare.failures import Misused, PrepareFailed
from cohort_prepare.triton.model_config import is_onnx
from cohort_prepare.triton.reading import Fields
from cohort_prepare.triton.text_format import MAX_BYTES, parse_text_format

Tensors = Mapping[str, str]
"""Sources of the ensemble's tensors by name: inputs, or step.output."""


def pipeline(fields: Fields, path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a pipeline.yaml, and notes. Raises Misused.

    path: The config.pbtxt. Files of the steps' models are read from folders next to its folder.
    """
    file = path.name
    inputs = _names(fields, "input")
    steps = _named(fields, file, inputs)
    notes: list[str] = []
    tensors = {name: name for name in inputs}
    for name, step in steps.items():
        for output, tensor in _map(step, "output_map").items():
            if tensor in tensors:
                raise Misused(
                    f"{file}: tensor {quoted(tensor)} comes from {quoted(tensors[tensor])} and "
                    f"from step {quoted(name)}: rename one of them"
                )
            tensors[tensor] = f"{name}.{output}"
    used: set[str] = set()
    made = {}
    for name, step in steps.items():
        made[name] = _step(name, step, tensors, used, file)
        notes += _on_model(name, made[name]["model"], path)
    outputs = {}
    for one in fields.messages("output"):
        name = one.text("name")
        outputs[name] = {"from": _source(name, tensors, used, f"output {quoted(name)}", file)}
        if labels := one.text("label_filename"):
            outputs[name]["labels"] = labels
            notes.append(f"copy {quoted(labels)}, the labels, to the folder of the pipeline.yaml")
    for name in inputs:
        if name not in used:
            notes.append(f"input {quoted(name)} is omitted: no step or output uses it")
    taken: dict[str, dict[str, Any]] = {name: {} for name in inputs if name in used}
    return {"inputs": taken, "steps": made, "outputs": outputs}, notes


def _named(fields: Fields, file: str, inputs: Sequence[str]) -> dict[str, Fields]:
    """Return the steps by model name.

    They are numbered if a model runs twice, or if an input has the name of its output.
    """
    found: dict[str, Fields] = {}
    taken = {name.partition(".")[0] for name in inputs if "." in name}
    steps = fields.message("ensemble_scheduling").messages("step")
    if len(steps) > MAX_STEPS:
        raise Misused(
            f"{file} has {len(steps)} steps, but a pipeline is limited to {MAX_STEPS}: split it; a "
            "step may run another pipeline"
        )
    for step in steps:
        model = step.text("model_name")
        if not MODEL_NAME.fullmatch(model):
            raise Misused(f"{file}: {quoted(model)}, in a step, is not a valid model name")
        base = re.sub(r"[^A-Za-z0-9_-]", "_", model)[:56]
        name, number = base, 2
        while name in found or name in taken:
            name, number = f"{base}_{number}", number + 1
        found[name] = step
    return found


def _names(fields: Fields, side: str) -> list[str]:
    return [one.text("name") for one in fields.messages(side)]


def _map(step: Fields, name: str) -> dict[str, str]:
    """Return a map of names to names."""
    return {key: str(value) for key, value in step.pairs(name).items()}


def _step(name: str, step: Fields, tensors: Tensors, used: set[str], file: str) -> dict[str, Any]:
    made: dict[str, Any] = {"model": step.text("model_name")}
    if (version := step.number("model_version")) > 0:
        made["version"] = version
    where = f"step {quoted(name)}"
    made["inputs"] = {
        key: _source(tensor, tensors, used, f"{where}: input {quoted(key)}", file)
        for key, tensor in _map(step, "input_map").items()
    }
    return made


def _source(tensor: str, tensors: Tensors, used: set[str], where: str, file: str) -> str:
    if tensor not in tensors:
        hint = did_you_mean(tensor, tensors)
        raise Misused(f"{file}: {where} is from {quoted(tensor)}, which no step returns{hint}")
    used.add(tensor)
    return tensors[tensor]


def _on_model(step: str, model: str, path: Path) -> list[str]:
    """Return notes on a step's model, from its config.pbtxt if there is one."""
    own = path.absolute().parent.parent / model / path.name
    try:
        if not own.is_file() or own.stat().st_size > MAX_BYTES:
            return []
        text = own.read_text(encoding="utf-8")
        fields = Fields(parse_text_format(text, str(own)), str(own))
        onnx = is_onnx(fields) or "ensemble_scheduling" in fields
    except (OSError, ValueError, PrepareFailed):
        return [f"step {quoted(step)}: {model}/{path.name} cannot be read"]
    if onnx:
        return []
    backend = fields.text("backend") or fields.text("platform")
    return [
        f"step {quoted(step)}: model {quoted(model)} has the backend {quoted(backend)}, but "
        "Cohort serves ONNX: export it (cohort convert). Code before or after a model becomes a "
        "transform (docs/guide/transform.md): remove the step, and do its work in the next one's"
    ]
