"""Protobuf's text format."""

from __future__ import annotations

import re

import pytest
from google.protobuf import descriptor_pb2, text_format

from cohort_prepare.failures import Misused
from cohort_prepare.triton.text_format import (
    MAX_BYTES,
    MAX_DEPTH,
    Message,
    Value,
    Word,
    parse_text_format,
)


def plain(value: Value) -> object:
    """Messages as dicts of lists; words in angle brackets."""
    if isinstance(value, Message):
        return {name: [plain(one) for one in values] for name, values in value.fields.items()}
    return f"<{value}>" if isinstance(value, Word) else value


def parsed(text: str) -> object:
    return plain(parse_text_format(text, "config.pbtxt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", {}),
        ("# only a comment", {}),
        ('name: "a"', {"name": ["a"]}),
        ("name: 'a\\'b' # end\nsize: -4", {"name": ["a'b"], "size": ["<-4>"]}),
        ('a: "x" "y"\n  \'z\'', {"a": ["xyz"]}),
        (r'a: "\n\t\x41\101\"\\"', {"a": ['\n\tAA"\\']}),
        ('a: "}" b: "" c: "[#"', {"a": ["}"], "b": [""], "c": ["[#"]}),
        ("a { b: 1 } a: { b: 2; } a < b: 3, >", {"a": [{"b": [f"<{n}>"]} for n in (1, 2, 3)]}),
        ("d: [ 1, -1 ] d: 7", {"d": ["<1>", "<-1>", "<7>"]}),
        ("d [ { x: 1 }, { x: 2 } ] e: []", {"d": [{"x": ["<1>"]}, {"x": ["<2>"]}], "e": []}),
        ("f: 1.5e-3 g: TYPE_FP32 h: true", {"f": ["<1.5e-3>"], "g": ["<TYPE_FP32>"],
                                            "h": ["<true>"]}),
    ],
)  # fmt: skip
def test_what_is_written_is_read(text: str, message: object) -> None:
    """Each form of the format is read."""
    assert parsed(text) == message


def test_what_protobuf_writes_is_read() -> None:
    """Its library's text of a message is read, wrapped and on one line."""
    message = descriptor_pb2.FileDescriptorProto()
    message.ParseFromString(descriptor_pb2.DESCRIPTOR.serialized_pb)
    broad = text_format.MessageToString(message)
    found = parse_text_format(broad, "x")
    names = [one.fields["name"] for one in found.fields["message_type"] if isinstance(one, Message)]
    assert names == [[one.name] for one in message.message_type]
    short = text_format.MessageToString(
        message, as_one_line=True, use_short_repeated_primitives=True
    )
    assert plain(parse_text_format(short, "x")) == plain(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb {\n", "line 3: expected a field name, and the file ends"),
        ("a: 1 }", "line 1: expected a field name, got '}'"),
        ('a: "x\ny"', "line 1: unexpected '\"'"),
        ("a", "expected ':' or '{' after 'a', and the file ends"),
        ("a 1", "expected ':' or '{' after 'a', got '1'"),
        ("a: [1", "expected a value, and the file ends"),
        ("a: {b: 1>", "expected a field name, got '>'"),
        ("1: 2", "expected a field name, got '1'"),
        ("[ext.name]: 2", "expected a field name, got '['"),
        ('"a": 2', "expected a field name"),
        ("a: \x00", "unexpected"),
        ("a {" * (MAX_DEPTH + 2), f"nested more than {MAX_DEPTH} deep"),
        ("a: 1 " * (MAX_BYTES // 4), "MiB"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, said: str) -> None:
    """The line is right however long, deep or unfinished the text is."""
    with pytest.raises(Misused, match=re.escape(said)):
        parsed(text)
