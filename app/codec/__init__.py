"""Between arrays and what travels: JSON text and raw bytes."""

from app.codec.answer import encode_prediction, encode_simple
from app.codec.binary import from_bytes, to_bytes
from app.codec.classes import classify
from app.codec.request import PredictRequest, decode_inputs
from app.codec.text import decode_tensor, encode_tensor
from app.codec.together import LONGEST_BODY, goes_together, pack_rows, read_row, write_rows
from app.codec.v1 import SIGNATURE, V1Request, parse_v1

__all__ = [
    "LONGEST_BODY",
    "SIGNATURE",
    "PredictRequest",
    "V1Request",
    "classify",
    "decode_inputs",
    "decode_tensor",
    "encode_prediction",
    "encode_simple",
    "encode_tensor",
    "from_bytes",
    "goes_together",
    "pack_rows",
    "parse_v1",
    "read_row",
    "to_bytes",
    "write_rows",
]
