"""Postprocessing of a model's outputs: labels, softmax, sigmoid and rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np

from cohort.codec.labels import can_be_labelled
from cohort.errors import LoadFailed
from cohort.repository import METADATA, OutputConfig
from cohort.session import metadata_labels
from cohort.system.kept_files import read_content, why_unreadable
from cohort.tensors import BY_NAME, Array, TensorSpec

Finish = Callable[[Array], Array]
"""A function that converts an output for callers, and keeps its shape and datatype."""

MAX_LABEL_BYTES = 16 << 20


def label_spec(
    spec: TensorSpec, config: OutputConfig, folder: Path, properties: Mapping[str, str]
) -> TensorSpec:
    """Return the spec of an output with the labels from a config.

    Raises LoadFailed if the labels are missing, or if their number is not that of the columns.
    """
    where = f"outputs.{spec.name}"
    if config.labels is None:
        for key in ("top", "threshold"):
            if getattr(config, key) is not None:
                raise LoadFailed(f"{where}.{key}: it needs labels, but there are none")
        return spec
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind == "text":
        raise LoadFailed(f"{where}.labels: {spec.datatype} cannot be ranked into classes")
    if not can_be_labelled(spec):
        raise LoadFailed(f"{where}.labels: shape {spec.shape_text} has no column for each class")
    if config.threshold is not None and datatype.kind != "float":
        raise LoadFailed(f"{where}.threshold: scores must be floats, not {spec.datatype}")
    labels = find_labels(where, spec, config.labels, folder, properties)
    if not labels:
        raise LoadFailed(f"{where}.labels: the list is empty")
    columns = spec.shape[-1] if spec.shape else None
    if isinstance(columns, int) and columns != len(labels):
        raise LoadFailed(
            f"{where}.labels: {len(labels)} labels for an output of {columns} columns, shape "
            f"{spec.shape_text}"
        )
    return replace(spec, classes=tuple(labels), named=config.top or 0, threshold=config.threshold)


def find_labels(
    where: str,
    spec: TensorSpec,
    labels: Sequence[str] | str,
    folder: Path,
    properties: Mapping[str, str],
) -> Sequence[str]:
    """Return the labels from a list, a file or the model's metadata. Raises LoadFailed."""
    if not isinstance(labels, str):
        return labels
    if labels == METADATA:
        known = spec.labels or metadata_labels(properties)
        if not known:
            raise LoadFailed(
                f"{where}.labels: the model file has no class names; list them here, or name a "
                "file with one per line"
            )
        return known
    return read_labels(f"{where}.labels", folder, labels)


def read_labels(where: str, folder: Path, name: str) -> Sequence[str]:
    """Return the lines of a file of labels. Raises LoadFailed."""
    if Path(name).name != name:
        raise LoadFailed(f"{where}: must be the name of a file in the version's folder")
    file = folder / name
    try:
        text = read_content(file, MAX_LABEL_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise LoadFailed(
            f"{where}: there is no {name} in the version's folder; put it into {folder.name}/"
        ) from None
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{where}: {name} {why_unreadable(error)}") from error
    labels = [line.strip() for line in StringIO(text, newline=None)]
    while labels and not labels[-1]:
        labels.pop()
    return labels


def finish_of(spec: TensorSpec, config: OutputConfig) -> Finish | None:
    """Return the function that changes an output; None if it stays unchanged. Raises LoadFailed."""
    places = config.round
    if not config.softmax and not config.sigmoid and places is None:
        return None
    where = f"outputs.{spec.name}"
    if config.softmax and config.sigmoid:
        raise LoadFailed(f"{where}: set either softmax or sigmoid, not both")
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind != "float":
        raise LoadFailed(f"{where}: softmax, sigmoid and round need floats, not {spec.datatype}")
    if config.softmax and spec.shape is not None and not spec.shape:
        raise LoadFailed(f"{where}.softmax: the output is one number")
    first = softmax if config.softmax else sigmoid if config.sigmoid else None
    if places is None:
        return first
    return lambda array: rounded(array if first is None else first(array), places)


def rounded(array: Array, places: int) -> Array:
    """Round each number to this many decimal places, in the array's datatype."""
    return np.round(array.astype(np.float64), places).astype(array.dtype)


def softmax(array: Array) -> Array:
    """Return the softmax over the last axis, in the array's datatype."""
    if not array.size or not array.ndim:
        return array
    exact = array.astype(np.float64)
    exact -= exact.max(axis=-1, keepdims=True)
    np.exp(exact, out=exact)
    exact /= exact.sum(axis=-1, keepdims=True)
    return exact.astype(array.dtype)


def sigmoid(array: Array) -> Array:
    """Return the sigmoid of each number, in the array's datatype."""
    exact = array.astype(np.float64)
    return (0.5 * (1 + np.tanh(0.5 * exact))).astype(array.dtype)
