"""Fields of a `config.pbtxt` by path, with a record of the fields that were read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cohort.errors import quoted
from cohort_prepare.failures import Misused
from cohort_prepare.triton.left_out import reason
from cohort_prepare.triton.text_format import Message, Value, Word

MAX_NOTES = 64


class Fields:
    """Fields of a message, with a record of those that were read.

    file: File name for errors.
    path: Path of the message in the file.
    """

    def __init__(self, message: Message, file: str, path: str = "") -> None:
        self._fields = message.fields
        self._file = file
        self._path = path
        self._inside: dict[str, list[Fields]] = {}
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def text(self, name: str) -> str:
        """Return a string; "" without the field."""
        found = self._last(name)
        if found is None:
            return ""
        if isinstance(found, Message | Word):
            raise self._wrong(name, "must be a quoted string")
        return found

    def word(self, name: str) -> str:
        """Return the name of an enum value; "" without the field."""
        found = self._last(name)
        if found is not None and not isinstance(found, Word):
            raise self._wrong(name, "must be a name such as TYPE_FP32, without quotes")
        return found or ""

    def truth(self, name: str) -> bool:
        """Return a boolean; False without the field."""
        return self.word(name).lower() in {"true", "t", "1"}

    def number(self, name: str) -> int:
        """Return an integer; 0 without the field."""
        numbers = self.numbers(name)
        return numbers[-1] if numbers else 0

    def numbers(self, name: str) -> list[int]:
        """Return all integers of a field."""
        found = []
        for one in self._values(name):
            try:
                if not isinstance(one, Word) or len(one) > 20:
                    raise ValueError
                found.append(int(str(one), 0) if one.lstrip("-")[:2] in {"0x", "0X"} else int(one))
            except ValueError:
                shown = "a message" if isinstance(one, Message) else quoted(one)
                raise self._wrong(name, f"must be a whole number, got {shown}") from None
        return found

    def texts(self, name: str) -> list[str]:
        """Return all strings of a field."""
        found = self._values(name)
        if any(isinstance(one, Message | Word) for one in found):
            raise self._wrong(name, "must be quoted strings")
        return [str(one) for one in found]

    def messages(self, name: str) -> list[Fields]:
        """Return the messages of a field; an empty list without the field."""
        if name not in self._inside:
            path = f"{self._path}{name}."
            found = []
            for one in self._values(name):
                if not isinstance(one, Message):
                    raise self._wrong(name, "must be a message in braces")
                found.append(Fields(one, self._file, path))
            self._inside[name] = found
        return self._inside[name]

    def message(self, name: str) -> Fields:
        """Return the last message of a field; an empty one without the field."""
        found = self.messages(name)
        return found[-1] if found else Fields(Message(), self._file, f"{self._path}{name}.")

    def pairs(self, name: str) -> dict[str, Fields | str]:
        """Return a map, written as messages with key and value; values are strings or messages."""
        found: dict[str, Fields | str] = {}
        for one in self.messages(name):
            values = one._fields.get("value", [""])
            is_message = bool(values) and isinstance(values[-1], Message)
            found[one.text("key")] = one.message("value") if is_message else one.text("value")
        return found

    def left_out(self) -> list[str]:
        """Return a note for each field that was not read, with advice."""
        paths = dict.fromkeys(self._untaken())
        notes = list(dict.fromkeys(reason(path) for path in islice(paths, MAX_NOTES)))
        if len(paths) > MAX_NOTES:
            notes.append(f"{len(paths) - MAX_NOTES} more fields are not converted")
        return [one for one in notes if one]

    def _untaken(self) -> Iterator[str]:
        for name in self._fields:
            if name not in self._taken:
                yield f"{self._path}{name}"
            for one in self._inside.get(name, ()):
                yield from one._untaken()

    def _values(self, name: str) -> list[Value]:
        self._taken.add(name)
        return self._fields.get(name, [])

    def _last(self, name: str) -> Value | None:
        values = self._values(name)
        return values[-1] if values else None

    def _wrong(self, name: str, sentence: str) -> Misused:
        return Misused(f"{self._file}: {self._path}{name} {sentence}")
