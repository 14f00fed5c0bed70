"""The keys of a request's body, each read with its type and bounds."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar

import orjson

from cohort.codec.json_body import parse_json
from cohort.codec.long_json import CUT_FROM_BYTES, LongList
from cohort.errors import InvalidInput, TooLarge, did_you_mean, quoted

V = TypeVar("V")

MAX_BODY_BYTES = 8 << 20
"""Limit of a body of text, longer than any model's context."""

MAX_ELEMENTS = 1 << 19
"""Limit of the elements of all long lists in a body."""

TYPE, VALUE, MISSING = "invalid_type", "invalid_value", "missing_required_parameter"
UNKNOWN, UNSUPPORTED = "unknown_parameter", "unsupported_parameter"

NAMES: Mapping[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body that must be a JSON object; a long one in pieces, for a thread.

    Raises InvalidInput or TooLarge.
    """
    if len(body) > MAX_BODY_BYTES:
        limit = MAX_BODY_BYTES >> 20
        raise TooLarge(f"the body is larger than the limit of {limit} MiB for text")
    if len(body) < CUT_FROM_BYTES:
        try:
            document = orjson.loads(body.removeprefix(BOM_UTF8))
        except orjson.JSONDecodeError as error:
            parse_json(body)  # raises with advice, except for NaN
            raise InvalidInput(f"the body is not valid JSON: {error}") from None
    else:
        document = _whole(parse_json(body), count())
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {_name(document)}", reason=TYPE)
    return document


def _whole(value: object, elements: Iterator[int]) -> object:
    """Return a parsed value with plain lists; `elements` counts those of long lists."""
    if isinstance(value, dict):
        return {key: _whole(one, elements) for key, one in value.items()}
    if not isinstance(value, LongList):
        return value
    found = []
    for one in value:
        if next(elements) >= MAX_ELEMENTS:
            raise InvalidInput(f"the body's lists have more than {MAX_ELEMENTS} elements")
        found.append(_whole(one, elements))
    return found


def _name(value: object) -> str:
    return NAMES.get(type(value), "another type")


def wrong_type(name: str, wanted: str, value: object) -> InvalidInput:
    """Return the error for a value of another type."""
    return InvalidInput(f"{name!r} must be {wanted}, not {_name(value)}", name, TYPE)


def wrong_value(name: str, problem: str) -> InvalidInput:
    """Return the error for a value that is not allowed."""
    return InvalidInput(f"{name!r} {problem}", name, VALUE)


class Fields:
    """An object of a request. Each method reads one key; null counts as left out.

    All methods raise InvalidInput.

    document: The object.
    place: Its place in the body, before the names of its keys; default "": the body.
    """

    __slots__ = ("_document", "_place", "_read")

    def __init__(self, document: Mapping[str, Any], place: str = "") -> None:
        self._document = document
        self._place = place
        self._read: set[str] = set()

    def name(self, key: str) -> str:
        """Return the place of a key in the body, as `stream_options.include_usage`."""
        return f"{self._place}.{key}" if self._place else key

    def get(self, key: str) -> Any:
        """Return the value of any type; None if it is missing."""
        self._read.add(key)
        return self._document.get(key)

    def of_type(self, key: str, kind: type[V]) -> V | None:
        """Return a value of one of JSON's types."""
        value = self.get(key)
        if value is None or value.__class__ is kind:
            return value
        raise wrong_type(self.name(key), NAMES[kind], value)

    def text(self, key: str, most: int) -> str | None:
        """Return a text of at most `most` characters."""
        value = self.of_type(key, str)
        if value is not None and len(value) > most:
            raise wrong_value(self.name(key), f"has {len(value)} characters, more than {most}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.of_type(key, bool)
        return default if value is None else value

    def of_number(self, key: str) -> float | None:
        """Return a number."""
        value = self.get(key)
        if value is None or value.__class__ in {int, float}:
            return value
        raise wrong_type(self.name(key), "a number", value)

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`."""
        value = self.get(key)
        if value.__class__ is float and value.is_integer():
            value = int(value)  # some languages write 5.0
        if value is None:
            return None
        if value.__class__ is not int:
            raise wrong_type(self.name(key), "an integer", value)
        self._check(key, value, low, high)
        return int(value)

    def number(self, key: str, low: float, high: float) -> float | None:
        """Return a number from `low` to `high`."""
        value = self.of_number(key)
        if value is None:
            return None
        self._check(key, value, low, high)
        return float(value)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """Return one of the allowed texts."""
        value = self.of_type(key, str)
        if value is not None and value not in allowed:
            names = ", ".join(map(repr, allowed))
            raise wrong_value(self.name(key), f"must be one of {names}, got {quoted(value)}")
        return value

    def items(self, key: str, most: int) -> list[Any] | None:
        """Return a list of at most `most` elements."""
        value = self.of_type(key, list)
        if value is not None and len(value) > most:
            raise wrong_value(self.name(key), f"has {len(value)} elements, more than {most}")
        return value

    def inside(self, key: str) -> Fields | None:
        """Return an object inside this one."""
        value = self.of_type(key, dict)
        return None if value is None else Fields(value, self.name(key))

    def required(self, key: str, refused: Mapping[str, str] = MappingProxyType({})) -> None:
        """Check that a key is there.

        refused: Keys that may have been sent instead, and what to do; default: none.
        """
        if self._document.get(key) is None:
            for other, advice in refused.items():
                if self._document.get(other) is not None:
                    raise self._unsupported(other, advice)
            raise InvalidInput(f"{self.name(key)!r} is missing", self.name(key), MISSING)

    def check_rest(self, ignored: Mapping[str, str], refused: Mapping[str, str]) -> None:
        """Refuse keys that were not read, unless they are null.

        ignored: Keys that change no answer, and why.
        refused: Keys that would change the answer, and what to do.
        """
        for key, value in self._document.items():
            if key in self._read or key in ignored or value is None:
                continue
            if key in refused:
                raise self._unsupported(key, refused[key])
            name = self.name(quoted(key)[1:-1])
            hint = did_you_mean(key, self._read)
            raise InvalidInput(f"unknown parameter {name!r}{hint}", name, UNKNOWN)

    def _unsupported(self, key: str, advice: str) -> InvalidInput:
        name = self.name(key)
        return InvalidInput(f"{name!r} is not supported: {advice}", name, UNSUPPORTED)

    def _check(self, key: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            raise wrong_value(
                self.name(key), f"must be from {low:.15g} to {high:.15g}, got {value:.15g}"
            )


def objects(values: list[Any], place: str) -> list[Fields]:
    """Return the objects of a list at a place in the body. Raises InvalidInput."""
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise wrong_type(f"{place}[{number}]", "an object", value)
    return [Fields(value, f"{place}[{number}]") for number, value in enumerate(values)]
