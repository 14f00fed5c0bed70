"""Model files: our reader must read what protobuf and ONNX read, or raise ValueError."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from onnx import ModelProto, ValueInfoProto

from cohort.errors import LoadFailed
from cohort.model_file.model import parse_model
from tests import onnx_models

SEEDS = [
    model.SerializeToString()
    for model in (
        onnx_models.identity(),
        onnx_models.describe(onnx_models.gather(), {"author": "me"}),
        onnx_models.sequence(),
        onnx_models.loop(nested=True),
        onnx_models.unknown_rank(),
    )
]
SEEDS += [
    b"\x0d\1\2\3\4" + SEEDS[0],  # a number of fixed length where ONNX has a varint
    SEEDS[0] + b"\x12\2\xff\xaa\x72\6\x0a\1a\x12\1\xff",  # text that is not UTF-8
]
TOKENS = (b"\x0a", b"\x12", b"\x3a", b"\x72", b"\x7b\x7c", b"\x80" * 9 + b"\x01", b"\xff" * 10)


def check(data: bytes) -> None:
    """Fail if our reader and ONNX differ, or for any other error."""
    try:
        found = parse_model(memoryview(data))
    except (ValueError, LoadFailed):
        return
    try:
        model = ModelProto.FromString(data)
    except DecodeError:
        return  # only the needed fields of weights are read
    metadata = found.metadata
    assert metadata.ir_version == model.ir_version
    assert dict(metadata.opsets) == {_text(one.domain): one.version for one in model.opset_import}
    assert metadata.producer == _text(model.producer_name)
    assert metadata.domain == _text(model.domain)
    assert metadata.description == _text(model.doc_string)
    properties = {_text(one.key): _text(one.value) for one in model.metadata_props}
    assert dict(metadata.properties) == properties
    declared = {}
    for value in (*model.graph.input, *model.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            declared[_text(value.name)] = _shape(value)
    assert dict(found.shapes) == declared


def _text(value: str | bytes) -> str:
    """Decode text; protobuf returns bytes for text that is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _shape(value: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    sizes: list[int | str | None] = []
    for one in tensor.shape.dim:
        size = one.dim_value if one.HasField("dim_value") else _text(one.dim_param) or None
        sizes.append(size if not isinstance(size, int) or size >= 0 else None)
    return tuple(sizes)
