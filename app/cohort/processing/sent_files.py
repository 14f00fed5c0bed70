"""The bytes of a file that a caller sent as an element of an input."""

from __future__ import annotations

from cohort.codec.base64_json import decode_base64
from cohort.errors import InvalidInput, quoted

NOT_BASE64 = "a string that is not base64: send the bytes of the file, not its path or URL"


def file_bytes(element: object, name: str, row: int) -> bytes:
    """Return the bytes of one element: bytes unchanged, or a string as base64 or a data: URL.

    name: The name of the input, for the message.
    row: The row of the element, for the message.

    Raises InvalidInput if the element is not a file.
    """
    data: bytes
    if isinstance(element, str):
        head, comma, _ = element[:256].partition(",")
        if head.startswith("data:") and comma:
            if not head.endswith(";base64"):
                raise _no_file(name, row, "a data: URL that is not base64")
            element = element[len(head) + 1 :]
        try:
            data = decode_base64(name, {"b64": element})
        except InvalidInput:
            raise _no_file(name, row, NOT_BASE64) from None
    else:
        data = bytes(element)  # type: ignore[call-overload]
    if not data:
        raise _no_file(name, row, "none: it is empty")
    return data


def _no_file(name: str, row: int, got: str) -> InvalidInput:
    return InvalidInput(
        f'input {quoted(name)} row {row}: expected a file as {{"b64": "…"}}, got {got}'
    )
