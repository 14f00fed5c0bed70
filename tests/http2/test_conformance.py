"""RFC 9113, case by case as h2spec goes through it: what each ends, and by which code.

https://www.rfc-editor.org/rfc/rfc9113, sections 5, 6 and 8. What test_connection has is not
repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import hpack
import pytest

from cohort.http2.connection import DRAIN_PING
from cohort.http2.frames import ErrorCode, frame, frame_head
from tests.http2.peers import HEADERS, Served, message

DATA, HEAD, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END, BLOCK, PADDED, PRIORITIZED = 1, 4, 8, 32

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
ASK = frame(PING, 0, 0, b"are you ")
ANSWER = frame(PING, 1, 0, b"are you ")

OK = None
CONNECTION, STREAM = "connection", "stream"

Ended = tuple[str, ErrorCode] | None


def block(*more: tuple[str, str], headers: Sequence[tuple[str, str]] = HEADERS) -> bytes:
    """Literals: no table is changed."""
    coded = [hpack.NeverIndexedHeaderTuple(*one) for one in (*headers, *more)]
    return bytes(hpack.Encoder().encode(coded))


def head(number: int = 1, flags: int = 0, *more: tuple[str, str]) -> bytes:
    """HEADERS of a call."""
    return frame(HEAD, BLOCK | flags, number, block(*more))


def data(number: int = 1, flags: int = 0, content: bytes = b"x") -> bytes:
    """DATA with a whole message."""
    return frame(DATA, flags, number, message(content))


def trailers(*headers: tuple[str, str], flags: int = END) -> bytes:
    """Headers behind a message."""
    return head() + data() + frame(HEAD, BLOCK | flags, 1, block(headers=headers))


WHOLE = head() + data(flags=END)
"""A call; stream 1 is closed behind it."""
RESET = frame(RST, 0, 1, (8).to_bytes(4, "big"))
WIDE = frame(WINDOW, 0, 1, (1).to_bytes(4, "big"))
PLAIN = frame(PRIORITY, 0, 1, b"\0\0\0\0\x10")


def fault(code: ErrorCode) -> Ended:
    return CONNECTION, code


def reset(code: ErrorCode) -> Ended:
    return STREAM, code


PROTOCOL, CLOSED, SIZE = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.STREAM_CLOSED,
    ErrorCode.FRAME_SIZE_ERROR,
)

CASES: dict[str, tuple[bytes, Ended]] = {
    "4.1 a frame of an unknown kind": (frame(0xFF, 0, 0, b"????????"), OK),
    "4.1 flags that mean nothing": (frame(PING, 0xFE, 0, b"????????"), OK),
    "4.1 the reserved bit": (frame_head(8, PING, 0, 1 << 31) + b"????????", OK),
    "4.3 a header block that cannot be read": (
        frame(HEAD, BLOCK | END, 1, b"\xff\xff\xff\xff\xff"),
        fault(ErrorCode.COMPRESSION_ERROR),
    ),
    "5.1 idle: DATA": (data(), fault(PROTOCOL)),
    "5.1 idle: RST_STREAM": (RESET, fault(PROTOCOL)),
    "5.1 idle: WINDOW_UPDATE": (WIDE, fault(PROTOCOL)),
    "5.1 idle: CONTINUATION": (frame(CONTINUATION, BLOCK, 1, block()), fault(PROTOCOL)),
    "5.1 idle: PRIORITY": (PLAIN, OK),
    "5.1 idle: DATA of a server's stream": (head(3) + data(2), fault(PROTOCOL)),
    "5.1 idle: RST_STREAM of a server's stream": (
        head(3) + frame(RST, 0, 2, bytes(4)),
        fault(PROTOCOL),
    ),
    "5.1 idle: WINDOW_UPDATE of a server's stream": (
        head(3) + frame(WINDOW, 0, 2, b"\0\0\0\1"),
        fault(PROTOCOL),
    ),
    "5.1 half-closed: PRIORITY": (head() + frame(DATA, END, 1) + PLAIN, OK),
    "5.1 closed: DATA": (WHOLE + data(), fault(CLOSED)),
    "5.1 closed: HEADERS": (WHOLE + head(flags=END), fault(CLOSED)),
    "5.1 closed: CONTINUATION": (
        WHOLE + frame(CONTINUATION, BLOCK, 1, block()),
        fault(PROTOCOL),
    ),
    "5.1 closed: RST_STREAM": (WHOLE + RESET, OK),
    "5.1 closed: WINDOW_UPDATE": (WHOLE + WIDE, OK),
    "5.1 closed: PRIORITY": (WHOLE + PLAIN, OK),
    "5.1 reset by its caller: DATA": (head() + RESET + data(), fault(CLOSED)),
    "5.1 reset by its caller: HEADERS": (head() + RESET + head(flags=END), fault(CLOSED)),
    "5.1 reset by us: DATA and trailers that are on their way": (
        head(1, 0, ("Upper", "1")) + data() + frame(HEAD, BLOCK | END, 1, block(headers=[])),
        reset(PROTOCOL),
    ),
    "5.1 reset by us: DATA behind its end": (
        head(1, 0, ("Upper", "1")) + data(flags=END) + data(),
        fault(CLOSED),
    ),
    "5.1.1 a stream of the server's": (head(2), fault(PROTOCOL)),
    "5.1.1 a stream below the last": (head(5, END) + head(3, END), fault(PROTOCOL)),
    "5.1.1 streams that are left out": (head(5) + head(9), OK),
    "6.1 DATA of stream 0": (frame(DATA, 0, 0, b"x"), fault(PROTOCOL)),
    "6.1 padding alone": (head() + frame(DATA, PADDED, 1, b"\3\0\0\0"), OK),
    "6.1 padding as long as the frame": (
        head() + frame(DATA, PADDED, 1, b"\4\0\0\0"),
        fault(PROTOCOL),
    ),
    "6.2 HEADERS of stream 0": (frame(HEAD, BLOCK, 0, block()), fault(PROTOCOL)),
    "6.2 padding as long as the frame": (
        frame(HEAD, BLOCK | PADDED, 1, b"\1"),
        fault(PROTOCOL),
    ),
    "6.2 a priority that is cut": (frame(HEAD, BLOCK | PRIORITIZED, 1, b"\0\0"), fault(SIZE)),
    "6.3 PRIORITY of stream 0": (frame(PRIORITY, 0, 0, bytes(5)), fault(PROTOCOL)),
    "6.3 PRIORITY that is cut": (head() + frame(PRIORITY, 0, 1, bytes(4)), fault(SIZE)),
    "6.4 RST_STREAM of stream 0": (frame(RST, 0, 0, bytes(4)), fault(PROTOCOL)),
    "6.4 RST_STREAM that is cut": (head() + frame(RST, 0, 1, bytes(3)), fault(SIZE)),
    "6.5 an acknowledgement that nobody waits for": (frame(SETTINGS, 1, 0), OK),
    "6.5.2 a setting that is unknown": (frame(SETTINGS, 0, 0, b"\0\xff\0\0\0\1"), OK),
    "6.6 PUSH_PROMISE": (frame(PUSH, BLOCK, 1, b"\0\0\0\2" + block()), fault(PROTOCOL)),
    "6.7 an answer that nobody asked for": (frame(PING, 1, 0, b"????????"), OK),
    "6.7 an answer to what we ask when we drain": (frame(PING, 1, 0, DRAIN_PING), OK),
    "6.8 GOAWAY of a stream": (frame(GOAWAY, 0, 1, bytes(8)), fault(PROTOCOL)),
    "6.8 GOAWAY": (frame(GOAWAY, 0, 0, bytes(8)), OK),
    "6.9 WINDOW_UPDATE of a stream by nothing": (
        head() + frame(WINDOW, 0, 1, bytes(4)),
        reset(PROTOCOL),
    ),
    "6.9.1 a stream's window too wide": (
        head() + frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff"),
        reset(ErrorCode.FLOW_CONTROL_ERROR),
    ),
    "6.9.2 a stream's window too wide by SETTINGS": (
        head() + frame(WINDOW, 0, 1, b"\x7f\xff\0\0") + frame(SETTINGS, 0, 0, b"\0\4\0\2\0\0"),
        fault(ErrorCode.FLOW_CONTROL_ERROR),
    ),
    "6.9.2 windows below nothing": (head() + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"), OK),
    "6.10 CONTINUATION behind a whole block": (
        head() + frame(CONTINUATION, BLOCK, 1, b"x"),
        fault(PROTOCOL),
    ),
    "6.10 CONTINUATION of stream 0": (
        frame(HEAD, 0, 1, block()) + frame(CONTINUATION, BLOCK, 0, b""),
        fault(PROTOCOL),
    ),
    "6.10 an unknown frame within a block": (
        frame(HEAD, 0, 1, block()) + frame(0xFF, 0, 0),
        fault(PROTOCOL),
    ),
    "6.10 a block in two parts": (
        frame(HEAD, 0, 1, block()) + frame(CONTINUATION, BLOCK, 1, b""),
        OK,
    ),
    "8.1 a second block that does not end the stream": (
        trailers(("x", "1"), flags=0),
        reset(PROTOCOL),
    ),
    "8.1 trailers": (trailers(("x", "1")), OK),
    "8.1 a pseudo-header in trailers": (trailers((":path", "/")), reset(PROTOCOL)),
    "8.1 a request as trailers": (trailers(*HEADERS), reset(PROTOCOL)),
    "8.1 trailers in upper case": (trailers(("X", "1")), reset(PROTOCOL)),
    "8.1 trailers of a connection": (trailers(("connection", "close")), reset(PROTOCOL)),
    "8.1.1 content-length that fits": (
        head(1, 0, ("content-length", "6")) + data(flags=END),
        OK,
    ),
    "8.1.1 content-length that is too large": (
        head(1, 0, ("content-length", "7")) + data(flags=END),
        reset(PROTOCOL),
    ),
    "8.1.1 content-length that is too small, in two frames": (
        head(1, 0, ("content-length", "6")) + data() + frame(DATA, END, 1, b"x"),
        reset(PROTOCOL),
    ),
    "8.1.1 content-length without data": (
        head(1, END, ("content-length", "6")),
        reset(PROTOCOL),
    ),
    "8.1.1 content-length and trailers": (
        head(1, 0, ("content-length", "9")) + data() + frame(HEAD, BLOCK | END, 1, b""),
        reset(PROTOCOL),
    ),
    "8.1.1 content-length without padding": (
        head(1, 0, ("content-length", "6"))
        + frame(DATA, END | PADDED, 1, b"\2" + message(b"x") + b"\0\0"),
        OK,
    ),
    "8.1.1 content-length that is no number": (
        head(1, 0, ("content-length", "+6")) + data(flags=END),
        reset(PROTOCOL),
    ),
    "8.1.1 two content-lengths": (
        head(1, 0, ("content-length", "6"), ("content-length", "6")) + data(flags=END),
        reset(PROTOCOL),
    ),
    "8.3 a response's pseudo-header": (
        frame(HEAD, BLOCK | END, 1, block(headers=[(":status", "200"), *HEADERS])),
        reset(PROTOCOL),
    ),
    "8.3 a pseudo-header that is unknown": (
        frame(HEAD, BLOCK | END, 1, block(headers=[(":test", "1"), *HEADERS])),
        reset(PROTOCOL),
    ),
}


def frames(written: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The kind, the stream and the content of each frame."""
    while written:
        end = 9 + int.from_bytes(written[:3], "big")
        yield written[3], int.from_bytes(written[5:9], "big"), written[9:end]
        written = written[end:]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["whole", "by byte"])
async def test_what_a_peer_may_not_send_ends_what_the_rfc_says(name: str, way: str) -> None:
    """The connection with its code, or the stream alone; and what it may send ends nothing."""
    sent, ended = CASES[name]
    served = Served()
    await served.feed(PREFACE)
    served.wire.take()
    sent += ASK
    await served.feed(sent, [1] * len(sent) if way == "by byte" else ())
    found = list(frames(bytes(served.wire.written)))
    goaways = [content[4:8] for kind, _, content in found if kind == GOAWAY]
    resets = [content for kind, number, content in found if kind == RST and number % 2]
    code = b"" if ended is None else int(ended[1]).to_bytes(4, "big")
    assert goaways == ([code] if ended is not None and ended[0] == CONNECTION else [])
    assert served.wire.closed == bool(goaways)
    if not goaways:
        assert bytes(served.wire.written).endswith(ANSWER)
        assert resets == ([code] if ended is not None else [])
