"""Check the `detections` of a config against the outputs of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cohort.errors import LoadFailed, did_you_mean, quoted
from cohort.processing.outputs import find_labels
from cohort.repository import DetectionOutput, OutputConfig
from cohort.tensors import BY_NAME, DetectionSpec, TensorSpec


def boxes_spec(
    spec: TensorSpec,
    config: OutputConfig,
    outputs: Sequence[TensorSpec],
    folder: Path,
    properties: Mapping[str, str],
) -> TensorSpec:
    """Return the spec of an output, with `detections` if the config defines them.

    outputs: All outputs of the model.
    folder, properties: The folder and metadata of the version, to find labels.

    Raises LoadFailed if the config does not fit the outputs.
    """
    declared = config.detections
    if declared is None:
        return spec
    where = f"outputs.{spec.name}.detections"
    if config.labels is not None:
        raise LoadFailed(f"outputs.{spec.name}: labels belong to scores; write {where}.labels")
    _check_numbers(where, spec)
    if spec.shape is not None and len(spec.shape) not in (2, 3):
        raise LoadFailed(f"{where}: shape {spec.shape_text} is not [pictures, boxes, 4]")
    columns = spec.shape[-1] if spec.shape else None
    if isinstance(columns, int) and columns < 4:
        raise LoadFailed(f"{where}: shape {spec.shape_text} has {columns} columns, not 4 for a box")
    scores = _find(f"{where}.scores", declared.scores, spec, outputs)
    if scores is not None:
        _check_numbers(f"{where}.scores: {scores.name}", scores)
    if declared.classes is not None:
        _find(f"{where}.classes", declared.classes, spec, outputs)
    if declared.normalized and declared.size is not None:
        raise LoadFailed(f"{where}: set either normalized or size, not both")
    if declared.size is not None and len(declared.size) != 2:
        raise LoadFailed(f"{where}.size: must be [height, width], got {list(declared.size)}")
    labels: Sequence[str] = ()
    if declared.labels is not None:
        labels = find_labels(where, replace(spec, classes=()), declared.labels, folder, properties)
        if not labels:
            raise LoadFailed(f"{where}.labels: the list is empty")
    return replace(spec, detections=_made(declared, labels))


def _made(declared: DetectionOutput, labels: Sequence[str]) -> DetectionSpec:
    size = None if declared.size is None else (declared.size[0], declared.size[1])
    unit = "picture" if declared.normalized or size is not None else "pixels"
    return DetectionSpec(
        declared.scores, declared.classes, declared.format, unit, size,
        tuple(labels), declared.threshold, declared.top,
    )  # fmt: skip


def _find(
    where: str, place: str | int, boxes: TensorSpec, outputs: Sequence[TensorSpec]
) -> TensorSpec | None:
    """Return the output of scores or classes; None for a column of the boxes. Raises LoadFailed."""
    columns = boxes.shape[-1] if boxes.shape else None
    if isinstance(place, int):
        if place < 4 or (isinstance(columns, int) and place >= columns):
            raise LoadFailed(
                f"{where}: {place} is not a column after the box, in shape {boxes.shape_text}"
            )
        return None
    named = {spec.name: spec for spec in outputs}
    if place not in named:
        raise LoadFailed(f"{where}: there is no output {quoted(place)}{did_you_mean(place, named)}")
    spec = named[place]
    if spec.shape is not None and boxes.shape is not None:
        axes = len(boxes.shape)
        lengths = zip(spec.shape, boxes.shape[:-1], strict=False)
        other = any(
            isinstance(one, int) and isinstance(two, int) and one != two for one, two in lengths
        )
        if len(spec.shape) not in (axes - 1, axes) or other:
            raise LoadFailed(
                f"{where}: {place} has shape {spec.shape_text}, but the boxes have "
                f"{boxes.shape_text}: the numbers of pictures and boxes must be equal"
            )
    return spec


def _check_numbers(where: str, spec: TensorSpec) -> None:
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind not in ("float", "int"):
        raise LoadFailed(f"{where}: {spec.datatype} is not numbers")
