"""Signatures of models: the names, datatypes and shapes of their inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from cohort.errors import quoted
from cohort.model_file.graphs import GraphReader
from cohort.model_file.protobuf import (
    TENSOR,
    FileSlice,
    MessageBytes,
    decode_text,
    fields,
    read_pair,
    read_value_info,
)
from cohort.session.class_maps import find_class_maps, spec_as_opened
from cohort.session.declared_classes import declared_classes, with_classes
from cohort.session.sequence_parts import Parts, find_parts
from cohort.tensors import DATATYPES, TensorSpec

MAX_FIELDS = 200_000
"""Maximum fields read, such as a node or a part of a weight: about a second on a thread."""

MAX_OPTIONAL = 32
"""Maximum optional inputs of a model. A model with more has its weights among its inputs, as some
exporters write them, and its signature has no optional inputs."""

OVERRIDABLE_FROM_IR = 4
"""The first IR version in which a weight among the inputs is a default that requests may replace.

https://github.com/onnx/onnx/blob/main/docs/IR.md#graphs
"""

_BY_NUMBER = {datatype.onnx: datatype.name for datatype in DATATYPES}


class Signature(NamedTuple):
    """The required inputs of a request, and its outputs, in the model's order.

    `optional` are the optional inputs; default none. `tables` has the number of entries of each
    table that an input indexes, by the input's name; default: unknown.
    """

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    optional: Sequence[TensorSpec] = ()
    tables: Mapping[str, int] = MappingProxyType({})

    def misfit(self, former: Signature, whose: str) -> str:
        """Return why callers of the `former` signature cannot use this one; "" if they can.

        Callers can use it under these conditions. Each former input has the same name and datatype,
        and accepts all its former shapes; only inputs that were required are required now. No
        output is missing or has another datatype. The classes of an output's columns may only gain
        new ones at the end.
        Unknown ranks fit. Labels from a config may change, because such a change is deliberate.
        `whose` is the name of the former signature in messages, such as "version 1".
        """
        inputs = {spec.name: spec for spec in (*former.inputs, *former.optional)}
        required = {spec.name for spec in former.inputs}
        for spec in self.inputs:
            if spec.name not in required:
                return f"it needs input {quoted(spec.name)}, unlike {whose}"
        for spec in (*self.inputs, *self.optional):
            if (before := inputs.pop(spec.name, None)) is None:
                continue
            if _another_datatype(spec, before):
                return _differs("input", spec.name, spec.datatype, before.datatype, whose)
            if not _takes_shapes_of(before, spec):
                return _differs("input", spec.name, spec.shape_text, before.shape_text, whose)
        for name in inputs:
            return f"it has no input {quoted(name)}, unlike {whose}"
        outputs = {spec.name: spec for spec in self.outputs}
        for before in former.outputs:
            if (now := outputs.get(before.name)) is None:
                return f"it has no output {quoted(before.name)}, unlike {whose}"
            if _another_datatype(now, before):
                return _differs("output", now.name, now.datatype, before.datatype, whose)
            if _other_classes(now, before):
                return f"its output {quoted(now.name)} has other classes, or in another order, " + (
                    f"than {whose}"
                )
        return ""


def _another_datatype(now: TensorSpec, former: TensorSpec) -> bool:
    # A file and a session use different names for types that cannot be sent.
    return now.datatype != former.datatype and (now.transportable or former.transportable)


def _other_classes(now: TensorSpec, former: TensorSpec) -> bool:
    if now.named is not None or former.named is not None:  # by a config
        return False
    return bool(now.classes) and now.classes[: len(former.classes)] != former.classes


def _differs(kind: str, name: str, now: str, before: str, whose: str) -> str:
    return f"its {kind} {quoted(name)} is {now}, unlike {before} in {whose}"


def _takes_shapes_of(former: TensorSpec, now: TensorSpec) -> bool:
    if former.shape is None or now.shape is None:
        return True
    sizes = list(zip(former.shape, now.shape, strict=False))
    fits = all(not isinstance(size, int) or size == before for before, size in sizes)
    return fits and len(former.shape) == len(now.shape)


def read_signature(path: Path) -> Signature | None:
    """Return the signature of the model at `path` without opening it; None if it is unknown.

    An input with a default among the weights is optional. Raises OSError.
    """
    with path.open("rb") as file:
        try:
            return parse_signature(FileSlice(file, 0, path.stat().st_size))
        except (ValueError, RecursionError):
            return None


def parse_signature(model: MessageBytes) -> Signature:
    """Return the signature of a model's bytes. Raises ValueError if invalid or too large."""
    inputs: dict[str, TensorSpec] = {}
    outputs: dict[str, TensorSpec] = {}
    elements: dict[str, int] = {}
    defaults: set[str] = set()
    left = count(MAX_FIELDS, -1)
    for graph in _messages(model, left, 7):
        for number, value in _numbered(graph, left):
            if number == 5:
                defaults.update(decode_text(name) for name in _messages(value, left, 8))
            elif number in (11, 12):
                spec = _spec(value)
                elements[spec.name] = read_value_info(value)[2]
                (inputs if number == 11 else outputs)[spec.name] = spec
    if not outputs:
        raise ValueError("it holds no graph with outputs")
    required = [spec for name, spec in inputs.items() if name not in defaults]
    ir_version = next((value for number, value in fields(model) if number == 1), 0)
    overridable = isinstance(ir_version, int) and ir_version >= OVERRIDABLE_FROM_IR
    optional = [spec for name, spec in inputs.items() if name in defaults] if overridable else []
    if unsent := [name for name, spec in outputs.items() if not spec.transportable]:
        again, reader = count(MAX_FIELDS, -1), GraphReader(sys.maxsize)
        nodes = [
            reader.node(value)
            for graph in _messages(model, again, 7)
            for value in _messages(graph, again, 1)
        ]
        maps = find_class_maps(nodes, unsent)
        parts = find_parts(nodes, unsent, {*inputs, *outputs, *defaults})
        outputs = {
            one.name: one
            for spec in outputs.values()
            for one in specs_of_parts(spec_as_opened(spec, maps), elements, parts)
        }
    declared = declared_classes(dict(map(read_pair, _messages(model, left, 14))))
    named = [with_classes(spec, declared) for spec in outputs.values()]
    return Signature(required, named, offered(optional))


def specs_of_parts(
    spec: TensorSpec, elements: Mapping[str, int], parts: Parts
) -> Sequence[TensorSpec]:
    """Return the outputs that replace one of a file: its tensors if `parts` has it, or itself."""
    if spec.name not in parts:
        return [spec]
    datatype = _BY_NUMBER.get(elements[spec.name], spec.datatype)
    return [TensorSpec(name, datatype, None, part_of=spec.name) for name, _ in parts[spec.name]]


def offered(optional: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the inputs with a default that requests may set; see MAX_OPTIONAL."""
    sent = tuple(spec for spec in optional if spec.transportable)
    return sent if len(sent) <= MAX_OPTIONAL else ()


def _numbered(message: MessageBytes, left: Iterator[int]) -> Iterator[tuple[int, MessageBytes]]:
    """Iterate over fields that are messages or texts. Raises ValueError after `left` fields."""
    for number, value in fields(message):
        if not next(left):
            raise ValueError(f"it holds more than {MAX_FIELDS:,} nodes and weights")
        if not isinstance(value, int):
            yield number, value


def _messages(message: MessageBytes, left: Iterator[int], wanted: int) -> Iterator[MessageBytes]:
    return (value for number, value in _numbered(message, left) if number == wanted)


def _spec(value: MessageBytes) -> TensorSpec:
    if len(value) > FileSlice.MAX_READ_BYTES:
        raise ValueError(f"an input is described in more than {FileSlice.MAX_READ_BYTES:,} bytes")
    name, kind, element, shape = read_value_info(value)
    is_tensor = kind == TENSOR
    datatype = _BY_NUMBER.get(element, f"datatype {element}") if is_tensor else f"kind {kind}"
    return TensorSpec(name, datatype, shape)
