"""`{"b64": "…"}` in JSON: bytes where JSON has only text, as TensorFlow Serving writes them.

https://www.tensorflow.org/tfx/serving/api_rest#encoding_binary_values
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any, TypeGuard

import numpy as np

from cohort.codec.binary import from_texts
from cohort.codec.json_tensors import MAX_RANK
from cohort.errors import InvalidInput, quoted
from cohort.tensors import Array, TensorSpec

_B64 = "b64"

DECODED_AT_ONCE = 1 << 20
"""Characters that are decoded in one call, which no other thread can interrupt: 1 ms."""


def is_base64(value: object) -> TypeGuard[dict[str, str]]:
    """Whether `value` is bytes in base64."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


class Base64Texts:
    """Reads the elements of an input of BYTES, in which any string may be base64.

    name: The input's.
    files: Whether its elements are files: they stay bytes; default False.
    """

    def __init__(self, name: str, *, files: bool = False) -> None:
        self._name = name
        self._files = files
        self._has_bytes = False

    def read(self, value: Any, depth: int = 0) -> Any:
        """Put text, or bytes where they are not UTF-8, in the place of each `{"b64": …}`.

        What is nested too deep is left as it is, and refused later: JSON nests deeper than
        functions may recurse. Raises InvalidInput.
        """
        if isinstance(value, list):
            return value if depth > MAX_RANK else [self.read(one, depth + 1) for one in value]
        if not is_base64(value):
            return value
        data = decode_base64(self._name, value)
        if self._files:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            self._has_bytes = True
            return data

    def finish(self, array: Array) -> Array:
        """Give the array for the runtime, of the `array` of all that was read."""
        if not self._has_bytes:
            return array
        texts: list[str | bytes] = array.ravel().tolist()
        elements = [one if isinstance(one, bytes) else one.encode() for one in texts]
        return from_texts(elements, self._name).reshape(array.shape)


def decode_base64(name: str, value: dict[str, str]) -> bytes:
    """The bytes of `{"b64": …}`, `name` being the input's. Raises InvalidInput."""
    text = value[_B64]
    last = len(text) - DECODED_AT_ONCE
    try:
        parts = []
        for start in range(0, len(text), DECODED_AT_ONCE):
            part = text[start : start + DECODED_AT_ONCE]
            if start < last and part.endswith("="):
                raise ValueError("padding in the middle")
            parts.append(b64decode(part, validate=True))
    except ValueError:  # binascii's own, or the plain one where it is not even ASCII
        pass
    else:
        return b"".join(parts)
    try:
        return _decode_any_spelling(text)
    except ValueError:
        raise InvalidInput(f"input {quoted(name)} has a 'b64' that is not base64") from None


_SPELLINGS = str.maketrans("-_", "+/", " \t\r\n")
"""The alphabet for URLs, and the ends of lines that MIME has."""


def _decode_any_spelling(text: str) -> bytes:
    """The bytes of base64 in lines, for URLs, or without its padding. Raises ValueError.

    https://www.rfc-editor.org/rfc/rfc4648#section-5
    """
    text = text.rstrip()
    padding = len(text) - len(text.rstrip("="))
    text = text.removesuffix("=" * padding)
    parts, left = [], ""
    for start in range(0, len(text), DECODED_AT_ONCE):
        part = left + text[start : start + DECODED_AT_ONCE].translate(_SPELLINGS)
        if "=" in part:
            raise ValueError("padding in the middle")
        whole = len(part) // 4 * 4
        parts.append(b64decode(part[:whole], validate=True))
        left = part[whole:]
    if padding and (len(left) + padding) % 4:
        raise ValueError("padding of another length")
    return b"".join([*parts, b64decode(left + "=" * (-len(left) % 4), validate=True)])


def is_stream(spec: TensorSpec) -> bool:
    """Whether an input is the bytes of one file, as numbers: UINT8 of one open dimension."""
    return spec.datatype == "UINT8" and spec.rows_vary and len(spec.shape or ()) == 1


def read_stream(data: bytes | memoryview) -> Array:
    """The array of an input that `is_stream`, without a copy."""
    return np.frombuffer(data, np.uint8)
