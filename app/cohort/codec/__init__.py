"""Conversion between arrays and request or response bodies: JSON text and raw bytes."""

from cohort.codec.base64_json import is_base64
from cohort.codec.binary import from_bytes, is_own_view, to_bytes
from cohort.codec.json_body import parse_json
from cohort.codec.json_outputs import encode_tensor
from cohort.codec.long_tensors import decode_tensor
from cohort.codec.predict_request import (
    MAX_ID,
    PredictRequest,
    check_id,
    decode_inputs,
    read_seconds,
    too_long_id,
)
from cohort.codec.predict_response import (
    ELEMENT_BYTES,
    LARGE_BYTES,
    are_large,
    encode_prediction,
    encode_simple,
)
from cohort.codec.rows import (
    MAX_ROWS_BODY_BYTES,
    Asked,
    RowRequest,
    Values,
    flat_rows,
    flat_texts,
    is_coalescible,
    nested_texts,
    pack_rows,
    raw_parts,
)
from cohort.codec.templates import ResponseTemplate, RunOutputs, Selection
from cohort.codec.v1 import SIGNATURE, V1Request, encode_predictions, parse_v1
from cohort.codec.varints import pack_values, unpack_values

__all__ = [
    "ELEMENT_BYTES",
    "LARGE_BYTES",
    "MAX_ID",
    "MAX_ROWS_BODY_BYTES",
    "SIGNATURE",
    "Asked",
    "PredictRequest",
    "ResponseTemplate",
    "RowRequest",
    "RunOutputs",
    "Selection",
    "V1Request",
    "Values",
    "are_large",
    "check_id",
    "decode_inputs",
    "decode_tensor",
    "encode_prediction",
    "encode_predictions",
    "encode_simple",
    "encode_tensor",
    "flat_rows",
    "flat_texts",
    "from_bytes",
    "is_base64",
    "is_coalescible",
    "is_own_view",
    "nested_texts",
    "pack_rows",
    "pack_values",
    "parse_json",
    "parse_v1",
    "raw_parts",
    "read_seconds",
    "to_bytes",
    "too_long_id",
    "unpack_values",
]
