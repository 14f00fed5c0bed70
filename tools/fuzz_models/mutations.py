"""Mutations of model files: of their bytes and of their fields."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.backend.test
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from tests import onnx_models
from tools import ROOT

INTEGERS = (0, 1, 2, -1, -2, 7, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
WORDS = (b"", b"x", b"N", b"com.microsoft", b"\xff\xfe", b"a" * 300, b"Loop", b"Reshape", b"Gather")
NUMBERS = (0.0, -1.0, 1e38, float("inf"), float("nan"))

MAX_BYTES = 200_000
"""The maximum size of a file in the corpus: mutations of larger files mostly hit weights."""


def corpus() -> list[bytes]:
    """Return the bundled models, those of the tests and those of the ONNX standard's operators."""
    files = sorted((ROOT / "models").rglob("model.onnx"))
    nodes = Path(inspect.getfile(onnx.backend.test)).parent / "data" / "node"
    files += sorted(nodes.glob("*/model.onnx"))
    contents = [file.read_bytes() for file in files]
    for name, make in sorted(vars(onnx_models).items()):
        if inspect.isfunction(make) and not name.startswith("_"):
            parameters = inspect.signature(make).parameters.values()
            if all(one.default is not one.empty for one in parameters):
                made = make()
                if isinstance(made, onnx.ModelProto):
                    contents.append(made.SerializeToString())
    return [content for content in contents if len(content) <= MAX_BYTES]


def mutate(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Return the kind of a mutation, and `content` with that mutation."""
    if rng.random() < 0.3:
        return "bytes", mutate_bytes(content, rng)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
        kinds = [_mutate(model, rng) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        return kinds[0], model.SerializeToString()
    except (DecodeError, ValueError, TypeError):  # protobuf does not write such content
        return "bytes", mutate_bytes(content, rng)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change, cut, repeat or exchange some bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data))
        end = min(len(data), at + rng.choice((1, 2, 8, 64)))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2 if len(data) > 100:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * rng.choice((1, 2, 100))
            case _:
                data[at:end] = rng.randbytes(end - at)
    return bytes(data)


def _mutate(model: onnx.ModelProto, rng: random.Random) -> str:
    """Change one field somewhere in `model`, and return its name."""
    message, field = rng.choice(list(_fields(model)))
    name = f"{message.DESCRIPTOR.name}.{field.name}"
    value = getattr(message, field.name)
    if field.is_repeated:
        action = rng.randrange(4)
        if action == 0 and value:
            del value[rng.randrange(len(value))]
        elif action == 1 and value:
            copied = value[rng.randrange(len(value))]
            value.extend([copied] * rng.choice((1, 1, 2, 50)))
        elif action == 2 and len(value) > 1 and field.message_type is not None:
            one, other = rng.sample(range(len(value)), 2)
            kept = type(value[one])()
            kept.CopyFrom(value[one])
            value[one].CopyFrom(value[other])
            value[other].CopyFrom(kept)
        elif field.message_type is None:
            made = _value(field, rng)
            if value and rng.random() < 0.7:
                value[rng.randrange(len(value))] = made
            else:
                value.append(made)
    elif field.message_type is not None or rng.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, rng))
    return name


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _fields(inner)


def _value(field: Any, rng: random.Random) -> object:
    texts: dict[int, Callable[[], object]] = {
        FieldDescriptor.CPPTYPE_INT32: lambda: rng.choice([*range(30), -1, 2**31 - 1]),
        FieldDescriptor.CPPTYPE_INT64: lambda: rng.choice(INTEGERS),
        FieldDescriptor.CPPTYPE_UINT64: lambda: rng.choice((0, 1, 2**63, 2**64 - 1)),
        FieldDescriptor.CPPTYPE_FLOAT: lambda: rng.choice(NUMBERS),
        FieldDescriptor.CPPTYPE_DOUBLE: lambda: rng.choice(NUMBERS),
        FieldDescriptor.CPPTYPE_ENUM: lambda: rng.choice(field.enum_type.values).number,
    }
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        word = rng.choice(WORDS)
        return word if field.type == field.TYPE_BYTES else word.decode("latin-1")
    return texts[field.cpp_type]()
