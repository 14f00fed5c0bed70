"""Detection of RTSP request lines, which the parser reads as HTTP.

llhttp reads `POST /predict RTSP/1.0` as HTTP/1.0 and does not report the difference. Input is
therefore cut before each possible RTSP line. There the connection checks if the parser has just
read a request line, because a header or a body may contain the same words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cohort.errors import InvalidInput

RTSP = b" RTSP/"

_LINE = re.compile(rb"(?<![A-Z_-])[A-Z_-]++ ++([^ \r\n]++)(?= ++RTSP/)")

Piece = tuple[bytes, bytes]
"""The target before this piece, if RTSP follows it, and the bytes to parse next."""


class RequestLines:
    """Searches the request lines of one connection."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""  # the end of the previous segment, where a line may continue

    def cut(self, segment: bytes, body: int, *, line_open: bool) -> Sequence[Piece]:
        """Cut a segment before each ` RTSP/` that follows a method and a target.

        body: Bytes of a body that follow. A segment within the body is not searched.
        line_open: True if a request line began in the previous segments.

        Raises InvalidInput if that line is RTSP's.
        """
        if body >= len(segment):
            return ((b"", segment),)
        if line_open:
            end = segment.find(b"\n") + 1 or len(segment)
            if RTSP in self._tail + segment[:end]:
                raise not_http()
        keep = len(RTSP) - 1
        self._tail = segment[-keep:] if len(segment) >= keep else (self._tail + segment)[-keep:]
        if RTSP not in segment:
            return ((b"", segment),)
        pieces, start, target = [], 0, b""
        for line in _LINE.finditer(segment):
            pieces.append((target, segment[start : line.end()]))
            start, target = line.end(), line[1]
        return [*pieces, (target, segment[start:])]


def not_http() -> InvalidInput:
    """Return the error for RTSP."""
    return InvalidInput("not a valid HTTP request: its request line names RTSP")
