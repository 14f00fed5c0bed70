"""`{"b64": "…"}` in JSON: bytes in JSON, in TensorFlow Serving's notation.

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
"""Characters decoded in one call, during which no other thread runs: 1 ms."""


def is_base64(value: object) -> TypeGuard[dict[str, str]]:
    """Return True if `value` is an object that holds base64 bytes."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


class Base64Texts:
    """Reader of an input of BYTES in which any string may be base64.

    name: The name of the input.
    files: True if its elements are files, which stay bytes; default False.
    """

    def __init__(self, name: str, *, files: bool = False) -> None:
        self._name = name
        self._files = files
        self._has_bytes = False

    def read(self, value: Any, depth: int = 0) -> Any:
        """Replace each `{"b64": …}` with its text, or with its bytes if they are not UTF-8.

        Values nested deeper than MAX_RANK are left unchanged and rejected later: JSON may nest
        deeper than functions can recurse. Raises InvalidInput.
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
        """Return the array for the runtime, given the `array` of all values read."""
        if not self._has_bytes:
            return array
        texts: list[str | bytes] = array.ravel().tolist()
        elements = [one if isinstance(one, bytes) else one.encode() for one in texts]
        return from_texts(elements, self._name).reshape(array.shape)


def decode_base64(name: str, value: dict[str, str]) -> bytes:
    """Decode `{"b64": …}` of the input `name`. Raises InvalidInput."""
    text = value[_B64]
    last = len(text) - DECODED_AT_ONCE
    try:
        parts = []
        for start in range(0, len(text), DECODED_AT_ONCE):
            part = text[start : start + DECODED_AT_ONCE]
            if start < last and part.endswith("="):
                raise ValueError("padding in the middle")
            parts.append(b64decode(part, validate=True))
    except ValueError:  # binascii.Error, or ValueError if the text is not ASCII
        pass
    else:
        return b"".join(parts)
    try:
        return _decode_any_spelling(text)
    except ValueError:
        raise InvalidInput(f"input {quoted(name)} has a 'b64' that is not base64") from None


_SPELLINGS = str.maketrans("-_", "+/", " \t\r\n")
"""Maps the URL-safe alphabet to the standard one, and deletes whitespace such as MIME line ends."""


def _decode_any_spelling(text: str) -> bytes:
    """Decode base64 that has line ends, the URL-safe alphabet or no padding.

    Raises ValueError.

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
        raise ValueError("padding of a wrong length")
    return b"".join([*parts, b64decode(left + "=" * (-len(left) % 4), validate=True)])


def is_stream(spec: TensorSpec) -> bool:
    """Return True if an input takes one file's bytes: UINT8 with one open dimension."""
    return spec.datatype == "UINT8" and spec.rows_vary and len(spec.shape or ()) == 1


def read_stream(data: bytes | memoryview) -> Array:
    """Make the array of an input for which `is_stream` is true, without a copy."""
    return np.frombuffer(data, np.uint8)
