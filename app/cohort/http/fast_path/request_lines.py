"""Request lines of RTSP, which the parser takes for HTTP's.

llhttp reads `POST /predict RTSP/1.0` as HTTP/1.0 and does not tell the difference. So what comes is
cut before each place that looks like such a line, and there the connection says whether a request
line is what the parser has read last: the same words may stand in a header or a body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cohort.errors import InvalidInput

RTSP = b" RTSP/"

_LINE = re.compile(rb"(?<![A-Z_-])[A-Z_-]++ ++([^ \r\n]++)(?= ++RTSP/)")

Piece = tuple[bytes, bytes]
"""The target that stands before it, where RTSP follows, and what is parsed next."""


class RequestLines:
    """The request lines of one connection."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""  # the end of what came before, where a line may go on

    def cut(self, segment: bytes, body: int, *, line_open: bool) -> Sequence[Piece]:
        """Cut a segment before each ` RTSP/` that follows a method and a target.

        body: How many bytes are a body's, which is not searched where the segment is within it.
        line_open: Whether a request line began in what came before.

        Raises InvalidInput where that line is RTSP's.
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
    """What to say to RTSP."""
    return InvalidInput("this is not an HTTP request: its line says RTSP")
