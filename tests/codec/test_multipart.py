"""The parts of a form."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.codec.multipart import MAX_HEADERS, MAX_PARTS, PARSED_AT_ONCE, split_parts
from cohort.errors import InvalidInput
from tests.counting import check_growth
from tests.examples import examples

TYPE = "multipart/form-data; boundary=b"
HEAD = b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n'
END = b"\r\n--b--\r\n"


def written(files: list[tuple[str, tuple[str | None, bytes, str]]]) -> tuple[bytes, str]:
    """Return a client's body and its content-type."""
    request = httpx.Request("POST", "http://cohort/", files=files)
    return request.read(), request.headers["content-type"]


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\%'), min_size=1
)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(NAMES, st.binary(max_size=200)), min_size=1, max_size=5))
def test_what_a_client_sends_comes_out(parts: list[tuple[str, bytes]]) -> None:
    """Names, media types and bytes come out in their order."""
    body, content_type = written([(name, ("f", data, "image/png")) for name, data in parts])
    found = split_parts(body, content_type)
    assert [(part.name, part.data) for part in found] == parts
    assert {(part.filename, part.media) for part in found} == {("f", "image/png")}


@pytest.mark.parametrize("fill", [b"\r\n--b", b"\r\n", b"-", b"\r\n--c\r\n"])
def test_data_like_a_boundary_comes_out(fill: bytes) -> None:
    """It is found also if a piece given to the parser ends within it."""
    data = (fill * (2 * PARSED_AT_ONCE // len(fill)))[:-1].replace(b"\r\n--b", b"\r\n--a")
    for shift in range(len(HEAD) + 8):
        sent = data[shift:] if shift < 8 else data[: PARSED_AT_ONCE - shift]
        (part,) = split_parts(HEAD + b"\r\n" + sent + END, TYPE)
        assert part.data == sent


def test_a_plain_value_has_no_file_and_no_type() -> None:
    """A field that is typed into a page has this form."""
    body = b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n[1]' + END
    assert split_parts(body, TYPE)[0][1:] == ("", "", b"[1]")


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (b"", "multipart/form-data", "has no boundary"),
        (b"", "multipart/form-data; boundary=" + "b" * 600, "more than 512 characters"),
        (b"", "multipart/form-data; boundary=" + "b" * 300, "is not multipart"),
        (b"--b\r\n" + b"a: b\r\n" * (MAX_HEADERS + 1), TYPE, "header count"),
        (b"--b\r\na: " + b"b" * 10_000, TYPE, "header size"),
        (b"--b\r\n" + b"a" * 10_000, TYPE, "header size"),
        (HEAD + b"content-transfer-encoding: base64\r\n\r\nYQ==" + END, TYPE, "'base64'"),
        ((HEAD + b"\r\n\r\n") * (MAX_PARTS + 1) + END[2:], TYPE, "more than 1024 parts"),
        (HEAD + b"\r\nx", TYPE, "ends before"),
        (b'--b\r\nContent-Disposition: form-data; filename="f"\r\n\r\n' + END, TYPE, "part 0"),
    ],
)
def test_a_form_that_is_none_is_told(body: bytes, content_type: str, says: str) -> None:
    """A form with more parts than any client sends is refused as well."""
    with pytest.raises(InvalidInput, match=says):
        split_parts(body, content_type)


@given(st.lists(st.sampled_from([HEAD, b"\r\n", b"--b", b"--", b"x", b"\0", b":", b"\r", b"a: b"])))
def test_no_pieces_do_more_than_be_refused(pieces: list[bytes]) -> None:
    """Any sequence of parts and boundaries is parsed, or raises InvalidInput."""
    with suppress(InvalidInput):
        split_parts(b"".join(pieces), TYPE)


@pytest.mark.parametrize(
    ("fill", "most"),
    [
        (b"\r", 1 << 22),
        (b"\r\n", 1 << 22),
        (b"\r\n--", 1 << 22),
        (b"\r\n--b", 1 << 20),  # which takes ten times as long as the others
        (b"\r\n-", 1 << 22),
    ],
)
def test_a_form_costs_what_it_weighs(fill: bytes, most: int) -> None:
    """A form of 32 times as many bytes takes about 32 times as long, whatever the data is like.

    At most 160 times is allowed; quadratic work would take 1024 times.
    """

    def split(size: int) -> None:
        body = HEAD + b"\r\n" + (fill + b"x") * (size // len(fill)) + END
        with suppress(InvalidInput):
            split_parts(body, TYPE)

    check_growth(lambda: split(most // 32), lambda: split(most), most=160)
