"""Reading and writing of tensors' contents in the bytes of inference messages.

Protobuf's classes make a Python object of each value of a tensor, and hold the interpreter lock for
the whole message. So longer messages are split here: protobuf parses everything except the
contents, and `cohort.codec` makes arrays of the contents.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cohort.codec import LARGE_BYTES
from cohort.codec.varints import varint
from cohort.http2.send_queue import Part
from cohort.rpc.calls import parse_message
from cohort.rpc.inference_pb2 import InferTensorContents, ModelInferRequest

SHORT_MESSAGE = 4096
"""Maximum size in bytes at which protobuf's classes are faster."""

MAX_FIELDS = 1000
"""Maximum fields, including elements of BYTES, that are read without a thread."""

MAX_FIELDS_OF_ALL = 20_000
"""Maximum fields, without elements of BYTES; above it, protobuf's classes are faster."""

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""The supported wire types; the only other ones are groups."""

_INPUTS = ModelInferRequest.INPUTS_FIELD_NUMBER
_RAW_INPUTS = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_CONTENTS = ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER
BYTES_CONTENTS = InferTensorContents.BYTES_CONTENTS_FIELD_NUMBER
PACKED = frozenset(InferTensorContents.DESCRIPTOR.fields_by_number) - {BYTES_CONTENTS}
_TEXT = BYTES_CONTENTS << 3 | DELIMITED


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a tensor.

    packed: The packed values, by field number.
    texts: The elements of bytes_contents.
    """

    packed: Mapping[int, Part]
    texts: Sequence[bytes]

    def __bool__(self) -> bool:
        """Return True if there are values."""
        return bool(self.packed or self.texts)


class InferMessage(NamedTuple):
    """A request, split into a protobuf message and the tensors' contents.

    message: The request, without the tensors' contents unless `contents` is None.
    raw: Its raw_input_contents.
    contents: The contents of each input, or None for an input without them; None if `message` has
        all contents.
    """

    message: ModelInferRequest
    raw: Sequence[Part]
    contents: Sequence[Contents | None] | None = None

    @classmethod
    def of(cls, message: ModelInferRequest) -> InferMessage:
        """Return the split form of a message that protobuf parsed completely."""
        return cls(message, message.raw_input_contents)


class _UnusualError(Exception):
    """A message left to protobuf: groups, unpacked numbers, many fields or an invalid message."""


class _TooMuchError(Exception):
    """A message with too many fields or bytes to read without a thread."""


def read_at_once(data: bytes | bytearray) -> InferMessage | None:
    """Read a message if that is quick, with tensors of any size; else return None.

    Raises InvalidInput.
    """
    if len(data) <= SHORT_MESSAGE:
        return InferMessage.of(parse_message(ModelInferRequest, data))
    try:
        return _Reader(data, quick=True).read()
    except (_UnusualError, _TooMuchError):
        return None


def read_whole(data: bytes | bytearray) -> InferMessage:
    """Read a message without a limit of time. Raises InvalidInput."""
    try:
        return _Reader(data, quick=False).read()
    except _UnusualError:
        message = parse_message(ModelInferRequest, data)
        return InferMessage(
            message,
            message.raw_input_contents,
            [
                _repacked(one.contents) if one.HasField("contents") else None
                for one in message.inputs
            ],
        )


def _repacked(contents: InferTensorContents) -> Contents:
    contents.DiscardUnknownFields()  # type: ignore[attr-defined]  # the stubs lack it
    data = contents.SerializeToString()  # it packs all numbers
    return _Reader(data, quick=False).contents([(0, len(data))])


class _Reader:
    """A parser that splits a message; raises _UnusualError and, if `quick`, _TooMuchError."""

    def __init__(self, data: bytes | bytearray, *, quick: bool) -> None:
        self._data = data
        self._view = memoryview(data)
        self._quick = quick
        self._fields_left = MAX_FIELDS if quick else MAX_FIELDS_OF_ALL
        self._most_texts = MAX_FIELDS if quick else len(data)
        self._bytes_left = LARGE_BYTES if quick else len(data)

    def read(self) -> InferMessage:
        """Read the whole message. Also raises InvalidInput."""
        rest: list[Part] = []
        raw: list[Part] = []
        contents: list[Contents | None] = []
        for number, wire_type, begin, start, end in self._fields(0, len(self._data)):
            if number == _RAW_INPUTS and wire_type == DELIMITED:
                raw.append(self._view[start:end])
            elif number == _INPUTS and wire_type == DELIMITED:
                kept, found = self._tensor(start, end)
                rest += [b"%c" % (_INPUTS << 3 | DELIMITED), varint(len(kept)), kept]
                contents.append(found)
            else:
                rest.append(self._keep(begin, end))
        return InferMessage(parse_message(ModelInferRequest, b"".join(rest)), raw, contents)

    def _tensor(self, at: int, stop: int) -> tuple[bytes, Contents | None]:
        """Return an input without its contents, and the contents."""
        rest: list[Part] = []
        places = []
        for number, wire_type, begin, start, end in self._fields(at, stop):
            if number == _CONTENTS and wire_type == DELIMITED:
                places.append((start, end))
            else:
                rest.append(self._keep(begin, end))
        return b"".join(rest), self.contents(places) if places else None

    def contents(self, places: Iterable[tuple[int, int]]) -> Contents:
        """Return the contents of a tensor, which may be in several places."""
        packed: dict[int, list[Part]] = {}
        texts: list[bytes] = []
        for at, stop in places:
            after = self._texts(at, stop, texts)
            for number, wire_type, _, start, end in self._fields(after, stop):
                if number in PACKED:
                    if wire_type != DELIMITED:
                        raise _UnusualError
                    if start != end:
                        packed.setdefault(number, []).append(self._view[start:end])
                elif number == BYTES_CONTENTS and wire_type == DELIMITED:
                    texts.append(bytes(self._data[start:end]))
        joined = {
            number: parts[0] if len(parts) == 1 else b"".join(parts)
            for number, parts in packed.items()
        }
        return Contents(joined, texts)

    def _texts(self, at: int, stop: int, texts: list[bytes]) -> int:
        """Read elements of BYTES, perhaps millions, and return the position after them."""
        data = self._data
        try:
            while at < stop and data[at] == _TEXT:
                size = data[at + 1]
                at += 2
                if size >= 0x80:
                    size, at = self._varint(at - 1)
                begin = at
                at += size
                if at > stop:
                    raise _UnusualError
                texts.append(bytes(data[begin:at]))
                if len(texts) > self._most_texts:
                    raise _TooMuchError
        except IndexError:
            raise _UnusualError from None
        return at

    def _keep(self, begin: int, end: int) -> Part:
        self._bytes_left -= end - begin
        if self._bytes_left < 0:
            raise _TooMuchError
        return self._view[begin:end]

    def _fields(self, at: int, stop: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield each field's number, wire type and start, and the start and end of its value."""
        while at < stop:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _TooMuchError if self._quick else _UnusualError
            begin = at
            tag, start = self._varint(at)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == DELIMITED:
                size, start = self._varint(start)
                at = start + size
            elif wire_type == VARINT:
                _, at = self._varint(start)
            elif wire_type == FIXED32:
                at = start + 4
            elif wire_type == FIXED64:
                at = start + 8
            else:
                raise _UnusualError
            if at > stop or not 0 < number < 1 << 29 or start - begin > 10:
                raise _UnusualError
            yield number, wire_type, begin, start, at

    def _varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        data, end = self._data, min(at + 10, len(self._data))
        while at < end:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise _UnusualError


def delimited(number: int, *parts: Part) -> list[Part]:
    """Return a field that contains `parts` in order, as parts."""
    size = sum(len(part) for part in parts)
    return [varint(number << 3 | DELIMITED) + varint(size), *parts]
