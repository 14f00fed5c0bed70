"""Heads of calls are read as gRPC specifies, and errors reach their callers as written."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.http2.field_decoding import Header
from cohort.http2.heads import MAX_KNOWN_HEADS, CallHeads, percent_encoded, trailers

CALL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b"content-type", b"application/grpc"),
]


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"00000003S", 3.0),
        (b"4m", 0.004),
        (b"5u", 0.000005),
        (b"99999999n", 0.099999999),
    ],
)
def test_deadlines_are_read(sent: bytes, seconds: float) -> None:
    """Each unit is read; heads that differ only in it share an entry."""
    heads = CallHeads()
    head = heads.read([*CALL, (b"grpc-timeout", sent)])
    assert head.timeout == pytest.approx(seconds, rel=1e-12)
    assert not head.bad_timeout
    assert head.call is heads.read(CALL).call
    assert heads.read(CALL).timeout is None


@pytest.mark.parametrize("sent", [b"", b"1", b"S", b"-1S", b"1s", b"123456789S", b"1S "])
def test_what_no_deadline_is_is_known(sent: bytes) -> None:
    """The call is refused, since it would have no deadline; two deadlines are also invalid."""
    assert CallHeads().read([*CALL, (b"grpc-timeout", sent)]).bad_timeout
    assert CallHeads().read([*CALL, *[(b"grpc-timeout", b"1S")] * 2]).bad_timeout


@given(st.lists(st.binary(max_size=20), max_size=4), st.booleans(), st.text("abc", max_size=5))
def test_metadata_is_what_was_sent(values: list[bytes], padded: bool, text: str) -> None:
    """Bytes in base64, with its padding or without, several under one name; texts as they are."""
    coded = [b64encode(one) if padded else b64encode(one).rstrip(b"=") for one in values]
    headers: list[Header] = [(b"x-bin", one) for one in coded]
    headers += [(b"y-bin", b", ".join(coded)), (b"z", text.encode())]
    told = CallHeads().read([*CALL, *headers]).metadata()
    each: list[tuple[str, str | bytes]] = [("x-bin", one) for one in values]
    together: list[tuple[str, str | bytes]] = [("y-bin", one) for one in values or [b""]]
    assert told == [*each, *together, ("z", text)]


def test_metadata_that_nobody_can_read_is_left_out() -> None:
    """The rest is there."""
    head = CallHeads().read([*CALL, (b"x-bin", b"?!"), (b"y", b"1")])
    assert head.metadata() == [("y", "1")]


def test_the_first_request_id_is_the_calls() -> None:
    """It is also metadata; no other name sets it."""
    ids = [(b"x-other", b"no"), (b"x-request-id", b"one"), (b"x-request-id", b"two")]
    head = CallHeads().read([*CALL, *ids])
    assert head.request_id == "one"
    assert len(head.metadata()) == 3
    assert CallHeads().read(CALL).request_id == ""


@pytest.mark.parametrize("sent", [b"user-1 ", b"user-1\t", b" user-1", b"\t user-1 \t"])
def test_blanks_around_a_value_are_no_part_of_it(sent: bytes) -> None:
    """Spaces and tabs around a header's value are removed, as over HTTP/1.1."""
    head = CallHeads().read([*CALL, (b"x-user-id", sent), (b"x-request-id", sent)])
    assert head.metadata() == [("x-user-id", "user-1"), ("x-request-id", "user-1")]
    assert head.request_id == "user-1"


@given(st.text(max_size=40))
def test_messages_of_errors_are_written_so_that_any_client_reads_them(text: str) -> None:
    """Printable ASCII stays, other characters become bytes of UTF-8, and invalid ones `?`."""
    written = percent_encoded(text).decode("ascii")
    assert written.isprintable()
    assert unquote(written) == text.encode("utf-8", "replace").decode()
    plain = "".join(one for one in text if one.isascii() and one.isprintable() and one != "%")
    assert percent_encoded(plain) == plain.encode()


def test_trailers_have_what_ends_a_call() -> None:
    """Trailers alone also name the protocol; texts have no line ends, and bytes are base64."""
    metadata = [("error-code", "a\r\nb"), ("x-bin", "ab")]

    def read(block: bytes) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, value in hpack.Decoder().decode(block, raw=True)]

    last = [
        (b"grpc-status", b"5"),
        (b"grpc-message", b"none"),
        (b"error-code", b"a  b"),
        (b"x-bin", b"YWI"),
    ]
    assert read(trailers(5, "none", metadata)) == last
    first = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    assert read(trailers(5, "none", metadata, only=True)) == [*first, *last]
    assert read(trailers(0, "", ())) == [(b"grpc-status", b"0")]


def test_so_many_heads_are_known() -> None:
    """Callers can make them up: paths, and names of metadata."""
    heads = CallHeads()
    for number in range(MAX_KNOWN_HEADS + 10):
        path = (b":path", b"/a/%d" % number)
        heads.read([*CALL[:2], path, CALL[3], (b"x-%d" % number, b"")])
    assert 0 < len(heads._known) <= MAX_KNOWN_HEADS
    assert 0 < len(heads._names) <= MAX_KNOWN_HEADS
