"""A classifier's scores by class, which scikit-learn's exporters write as dictionaries.

Their models end in the operator ZipMap, which converts each row to `{"setosa": 0.9, …}`. No request
protocol supports this type. ZipMap's input tensor has the same scores in columns, and its
attributes name the class of each column. So the model is opened with an Identity instead of it.

https://onnx.ai/onnx/operators/onnx_aionnxml_ZipMap.html
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cohort.model_file.constants import CLASS_NUMBERS
from cohort.model_file.graphs import GraphReader, Node
from cohort.model_file.protobuf import FileSlice, MessageBytes, fields, read_opset, read_value_info
from cohort.model_file.writing import write_field, write_key, write_parts, write_varint
from cohort.tensors import TensorSpec

Classes: TypeAlias = tuple[int, ...] | tuple[str, ...]
"""The classes of a classifier, in the order of its columns."""

MAX_CLASSES = 100_000
"""An upper bound: no classifier that writes a dictionary for each row has as many classes."""

ONE_LABEL = (1,)
"""The shape that onnxmltools declares for the labels of any number of rows."""

ONNX_DOMAINS = ("", "ai.onnx")
"""The domains of ONNX's own operators; the second is an alias in ONNX Runtime."""

_FLOAT = 1  # a TensorProto.DataType
_OPSET = 13  # the opset of Identity, if a model has only operators of other domains


class _ZipMap(NamedTuple):
    scores: str
    output: str
    classes: Classes


def find_class_maps(nodes: Iterable[Node], outputs: Collection[str]) -> dict[str, Classes]:
    """Return the classes of each of `outputs` that a ZipMap node makes, by output name."""
    made = map(_zip_map, nodes) if outputs else ()
    return {one.output: one.classes for one in made if one is not None and one.output in outputs}


def spec_as_opened(spec: TensorSpec, class_maps: Mapping[str, Classes]) -> TensorSpec:
    """Return the spec of an output after `with_columns`; `spec` is the spec in the file."""
    if classes := class_maps.get(spec.name):
        return TensorSpec(spec.name, "FP32", (None, len(classes)), classes)
    return replace(spec, shape=(None,)) if class_maps and spec.shape == ONE_LABEL else spec


def with_columns(path: Path, class_maps: Mapping[str, Classes]) -> bytes:
    """Return the model at `path` with tensors instead of `class_maps`: FP32 [rows, classes].

    Raises OSError, and ValueError if the file is not the protobuf of a model.
    """
    with path.open("rb") as file:
        model = FileSlice(file, 0, path.stat().st_size)
        parts: list[bytes] = []  # joined once, so weights are in memory at most twice
        has_opset = False
        for number, value in fields(model):
            if number == 7 and not isinstance(value, int):
                graph = [part for field in _graph(value, class_maps) for part in field]
                parts += [write_key(7), write_varint(sum(map(len, graph))), *graph]
                continue
            if number == 8 and not isinstance(value, int):
                has_opset |= read_opset(value)[0] in ONNX_DOMAINS
            parts += write_parts(number, value)
    if not has_opset:
        parts += write_parts(8, write_field(2, _OPSET))
    return b"".join(parts)


def _graph(graph: MessageBytes, class_maps: Mapping[str, Classes]) -> Iterator[Sequence[bytes]]:
    reader = GraphReader(sys.maxsize)
    for number, value in fields(graph):
        if number == 1 and not isinstance(value, int):
            made = _zip_map(reader.node(value))
            if made is not None and made.output in class_maps:
                yield write_parts(1, _identity(made))
                continue
        elif number == 12 and not isinstance(value, int):
            name, _, element, shape = read_value_info(value)
            if name in class_maps:
                yield write_parts(
                    12, _tensor(name, _FLOAT, b"", write_field(1, len(class_maps[name])))
                )
                continue
            if shape == ONE_LABEL:
                yield write_parts(12, _tensor(name, element, b""))
                continue
        yield write_parts(number, value)


def _zip_map(node: Node) -> _ZipMap | None:
    """Return the ZipMap of a node; None for another operator, or if its classes are unknown."""
    if node.function[:2] != ("ai.onnx.ml", "ZipMap") or not node.inputs or not node.outputs:
        return None
    numbers, texts = node.attributes.get(CLASS_NUMBERS), node.attributes.get("classlabels_strings")
    for classes in (numbers, texts):
        if isinstance(classes, list) and classes:
            return _ZipMap(node.inputs[-1], node.outputs[-1], tuple(classes))
    return None


def _identity(made: _ZipMap) -> bytes:
    texts = {1: made.scores, 2: made.output, 4: "Identity"}
    return b"".join(write_field(number, text.encode()) for number, text in texts.items())


def _tensor(name: str, element: int, *dimensions: bytes) -> bytes:
    """Return the description of an output; a dimension without bytes has any length."""
    shape = b"".join(write_field(1, one) for one in dimensions)
    tensor = write_field(1, element) + write_field(2, shape)
    return write_field(1, name.encode()) + write_field(2, write_field(1, tensor))
