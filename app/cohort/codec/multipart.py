"""The parts of a `multipart/form-data` body: https://www.rfc-editor.org/rfc/rfc7578."""

from __future__ import annotations

import logging
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from cohort.errors import InvalidInput, quoted

MAX_PARTS = 1024
"""Maximum parts of a body: reading a part takes 10 µs."""

MAX_HEADERS = 8
"""Maximum headers of a part; valid parts need three."""

MAX_CONTENT_TYPE = 512

PARSED_AT_ONCE = 1 << 20
"""Bytes searched in one call, during which no other thread runs: half a millisecond."""

_PLAIN = frozenset({"", "7bit", "8bit", "binary"})

# It logs a warning for each body that it rejects: clients could flood the log.
logging.getLogger("python_multipart.multipart").disabled = True


class FormPart(NamedTuple):
    """One part of a form.

    name: The name in its Content-Disposition.
    filename: The name of the file; "" for a plain value.
    media: The media type, in lower case and without parameters; "" if not given.
    data: The content.
    """

    name: str
    filename: str
    media: str
    data: bytes


def split_parts(body: bytes, content_type: str) -> list[FormPart]:
    """Split a body whose Content-Type header is `content_type`. Raises InvalidInput."""
    if len(content_type) > MAX_CONTENT_TYPE:
        raise InvalidInput(f"the content-type has more than {MAX_CONTENT_TYPE} characters")
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise InvalidInput(
            "the content-type multipart/form-data has no boundary; omit the header, so that "
            "the client that writes the form sets it"
        )
    reader = _Reader()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_header_field": reader.add_name,
                "on_header_value": reader.add_value,
                "on_header_end": reader.end_header,
                "on_part_data": reader.add_data,
                "on_part_end": reader.end_part,
                "on_end": reader.end,
            },
            max_header_count=MAX_HEADERS,
        )
        for at in range(0, len(body), PARSED_AT_ONCE):
            parser.write(body[at : at + PARSED_AT_ONCE])
    except FormParserError as error:
        raise InvalidInput(f"the body is not multipart/form-data: {error}") from None
    if not reader.ended:
        raise InvalidInput("the multipart/form-data body ends before its last boundary")
    return reader.parts


class _Reader:
    """Collector of the parser's callbacks, which may deliver values in pieces."""

    def __init__(self) -> None:
        self.parts: list[FormPart] = []
        self.ended = False

    def begin(self) -> None:
        if len(self.parts) == MAX_PARTS:
            raise InvalidInput(f"the multipart/form-data body has more than {MAX_PARTS} parts")
        self._headers: dict[bytes, str] = {}
        self._data: list[bytes] = []
        self._name = self._value = b""

    def add_name(self, piece: bytes, start: int, end: int) -> None:
        self._name += piece[start:end]

    def add_value(self, piece: bytes, start: int, end: int) -> None:
        self._value += piece[start:end]

    def end_header(self) -> None:
        self._headers[self._name.lower()] = self._value.decode("latin-1")
        self._name = self._value = b""

    def add_data(self, piece: bytes, start: int, end: int) -> None:
        self._data.append(piece[start:end])

    def end_part(self) -> None:
        number = len(self.parts)
        coding = self._headers.get(b"content-transfer-encoding", "").strip().lower()
        if coding not in _PLAIN:
            raise InvalidInput(
                f"part {number} has the content-transfer-encoding {quoted(coding)}: "
                "multipart/form-data must not use one"
            )
        disposition, options = parse_options_header(self._headers.get(b"content-disposition"))
        if disposition != b"form-data" or b"name" not in options:
            raise InvalidInput(f"part {number} has no content-disposition form-data with a name")
        media, _ = parse_options_header(self._headers.get(b"content-type"))
        self.parts.append(
            FormPart(
                _text(options[b"name"]),
                _text(options.get(b"filename", b"")),
                media.decode("latin-1"),
                b"".join(self._data),  # other threads can run: all items are bytes
            )
        )

    def end(self) -> None:
        self.ended = True


def _text(value: bytes) -> str:
    """Decode a parameter as UTF-8, which browsers send."""
    return value.decode(errors="replace")
