"""What callers get of a model's outputs: labels, and numbers that say more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cohort.errors import LoadFailed
from cohort.repository import METADATA, OutputConfig
from cohort.tensors import BY_NAME, Array, TensorSpec

Finish = Callable[[Array], Array]
"""Makes of an output what callers get, of its shape and datatype."""

MOST_LABEL_BYTES = 16 << 20


def label_spec(
    spec: TensorSpec, config: OutputConfig, folder: Path, properties: Mapping[str, str]
) -> TensorSpec:
    """The spec of an output with the labels that a config gives it.

    Raises LoadFailed where there are none, or other ones than the output has columns.
    """
    where = f"outputs.{spec.name}"
    if config.labels is None:
        if config.top is not None:
            raise LoadFailed(f"{where}.top: how many labels, and there are none: give labels")
        return spec
    labels = _labels(where, spec, config.labels, folder, properties)
    columns = spec.shape[-1] if spec.shape else None
    if isinstance(columns, int) and columns != len(labels):
        raise LoadFailed(
            f"{where}.labels: {len(labels)} labels for an output of {columns} columns, shape "
            f"{spec.shape_text}"
        )
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind == "text":
        raise LoadFailed(f"{where}.labels: {spec.datatype} cannot be ranked into classes")
    return replace(spec, classes=tuple(labels), named=config.top or 0)


def _labels(
    where: str,
    spec: TensorSpec,
    labels: Sequence[str] | str,
    folder: Path,
    properties: Mapping[str, str],
) -> Sequence[str]:
    if not isinstance(labels, str):
        return labels
    if labels == METADATA:
        known = spec.labels or metadata_labels(properties)
        if not known:
            raise LoadFailed(
                f"{where}.labels: the model's file names no classes: list them here, or convert it "
                "with --classes"
            )
        return known
    return read_labels(where, folder, labels)


def metadata_labels(properties: Mapping[str, str]) -> Sequence[str]:
    """The property "classes" of a file, a JSON list; empty where it is not one."""
    try:
        classes = json.loads(properties.get("classes", "[]"))
    except ValueError:
        return []
    return [str(one) for one in classes] if isinstance(classes, list) else []


def read_labels(where: str, folder: Path, name: str) -> Sequence[str]:
    """The lines of a file of labels. Raises LoadFailed."""
    if Path(name).name != name:
        raise LoadFailed(f"{where}.labels: must be the name of a file beside model.onnx")
    file = folder / name
    try:
        if file.stat().st_size > MOST_LABEL_BYTES:
            raise LoadFailed(f"{where}.labels: {name} has more than {MOST_LABEL_BYTES >> 20} MB")
        text = file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise LoadFailed(
            f"{where}.labels: there is no {name} beside model.onnx; put it into {folder.name}/"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{where}.labels: {name} cannot be read as text: {error}") from error
    labels = [line.strip() for line in text.splitlines()]
    while labels and not labels[-1]:
        labels.pop()
    return labels


def finish_of(spec: TensorSpec, config: OutputConfig) -> Finish | None:
    """What becomes of an output; None where it stays. Raises LoadFailed."""
    if not config.softmax and not config.sigmoid:
        return None
    where = f"outputs.{spec.name}"
    if config.softmax and config.sigmoid:
        raise LoadFailed(f"{where}: it is either softmax or sigmoid")
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind != "float":
        raise LoadFailed(f"{where}: {spec.datatype} is not floats, which softmax and sigmoid take")
    if config.softmax and spec.shape is not None and not spec.shape:
        raise LoadFailed(f"{where}.softmax: the output is one number")
    return softmax if config.softmax else sigmoid


def softmax(array: Array) -> Array:
    """The softmax of the last axis, in the array's own datatype."""
    if not array.size or not array.ndim:
        return array
    exact = array.astype(np.float64)
    exact -= exact.max(axis=-1, keepdims=True)
    np.exp(exact, out=exact)
    exact /= exact.sum(axis=-1, keepdims=True)
    return exact.astype(array.dtype)


def sigmoid(array: Array) -> Array:
    """The sigmoid of each number, in the array's own datatype."""
    exact = array.astype(np.float64)
    return (0.5 * (1 + np.tanh(0.5 * exact))).astype(array.dtype)
