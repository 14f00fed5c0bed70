"""Validation of a file's content: a dataclass, or one sentence for each problem."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import PlainValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from cohort.errors import did_you_mean, quoted
from cohort.repository.yaml_files import ConfigProblems, Problem

T = TypeVar("T")


class Range(NamedTuple):
    """The range of a number, both ends included."""

    low: float
    high: float
    why: str = ""


def validate_tree(tree: object, kind: type[T], file: str, ranges: Mapping[str, Range]) -> T:
    """Convert a file's content to the dataclass `kind`.

    `ranges` has the numbers' limits by path; `*` stands for any name or position. Raises
    ConfigProblems with all problems.
    """
    problems = list(_find_out_of_range(tree, file, ranges))
    adapter = _adapter(kind)  # type: ignore[arg-type]  # mypy takes classes for unhashable
    try:
        # As JSON, because a strict check of JSON accepts a list for a tuple.
        made: T = adapter.validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [_explain(one, file, kind) for one in details] + problems
    if problems:
        raise ConfigProblems(problems)
    return made


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _find_out_of_range(
    tree: object,
    file: str,
    ranges: Mapping[str, Range],
    path: tuple[object, ...] = (),
    pattern: str = "",
) -> Iterator[Problem]:
    """Check the numbers of the raw file, so that other mistakes do not hide these."""
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            for step in (str(key), "*"):
                below = f"{pattern}.{step}" if pattern else step
                if any(known == below or known.startswith(f"{below}.") for known in ranges):
                    yield from _find_out_of_range(value, file, ranges, (*path, key), below)
    elif isinstance(tree, int | float) and not isinstance(tree, bool) and pattern in ranges:
        low, high, why = ranges[pattern]
        # The type check rejects NaN and infinity.
        if not low <= tree <= high and abs(tree) < float("inf"):
            because = f" ({why})" if why else ""
            yield Problem(
                file,
                _dotted(path),
                f"must be from {low:g} to {_plain(high)}{because}, got {show(tree)}",
            )


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _explain(details: ErrorDetails, file: str, kind_of_file: type) -> Problem:
    kind, location, value = details["type"], details["loc"], details["input"]
    if kind == "unexpected_keyword_argument":
        key, known = str(location[-1]), _keys_at(kind_of_file, location[:-1])
        elsewhere = [path for path in _paths(kind_of_file) if path[-1] == key]
        if elsewhere == [(key,)]:
            sentence = f"unknown key {quoted(key)}; it belongs at the top level of the file"
        elif elsewhere:
            sentence = f"unknown key {quoted(key)}; did you mean {'.'.join(elsewhere[0])}?"
        else:
            sentence = unknown_key(key, known)
        return Problem(file, _dotted(location[:-1]), sentence)
    if kind == "invalid":
        return Problem(file, _dotted(location), details["msg"])
    if kind == "missing":
        return Problem(file, _dotted(location), "is missing")
    if kind == "json_invalid":
        return Problem(file, "", "is nested too deeply")
    if value is None:
        return Problem(file, _dotted(location), "is empty; give it a value or leave the key out")
    if kind == "literal_error":
        choices = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        names = choices.split(", ")
        close = did_you_mean(value, names) if isinstance(value, str) and len(names) > 8 else ""
        sentence = f"must be one of {choices}, got {show(value)}{close}"
        return Problem(file, _dotted(location), sentence)
    wanted = WANTED.get(kind)
    if kind in OF_KEYS:
        keys = ", ".join(sorted(_keys_at(kind_of_file, location)))
        wanted = f"keys with values ({keys})" if keys else "keys with values"
    if wanted is None:
        return Problem(file, _dotted(location), details["msg"].replace("Input", "it"))
    fix = _fix(kind, str(location[-1]) if location else "", value)
    return Problem(file, _dotted(location), f"must be {wanted}, got {show(value)}{fix}")


def _fix(kind: str, key: str, value: object) -> str:
    """Return a hint to the correct spelling of a value, or "" if the intent is unclear."""
    if kind in {"tuple_type", "list_type"} and isinstance(value, str | int | float):
        return f"; write [{str(value)[:80]}]"
    if kind in OF_KEYS and isinstance(value, str):
        if key in ONE_OF_ITS_KEYS and WORD.fullmatch(value):
            return f"; write {{{ONE_OF_ITS_KEYS[key]}: {value}}}"
        return "; a colon and a space go between a key and its value"
    if kind in {"int_type", "float_type"} and isinstance(value, str):
        number = NUMBER.match(value)
        if number is None:
            return ""
        if number[1] == value:
            return "; take the quotes away"
        if key.endswith(UNITS):
            return "; write the number alone: the unit is in the key's name"
        return f"; write {number[1]}"
    return ""


OF_KEYS = frozenset({"dataclass_type", "dict_type", "mapping_type"})
ONE_OF_ITS_KEYS = {"sticky": "header"}
"""Keys with nested keys, each with the nested key that a plain word most likely means."""
WORD = re.compile(r"[\w-]{1,80}", re.ASCII)
UNITS = ("_ms", "_minutes", "_mb", "_seconds")
NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?[A-Za-z%]{0,8}$")


WANTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
}


def _keys_at(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a file may have at `path`; empty if any name is valid."""
    for step in path:
        if get_origin(kind) is Annotated:
            return []
        if is_dataclass(kind):
            kind = get_type_hints(kind, include_extras=True)[str(step)]
        elif arguments := get_args(kind):
            kind = arguments[1] if isinstance(step, str) else arguments[0]
        kind = _unwrapped(kind)
    return [one.name for one in fields(kind)] if is_dataclass(kind) else []


def _paths(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys that a file may have, except those below names that an operator chooses."""
    kind = _unwrapped(kind)
    if is_dataclass(kind):
        for name, below in get_type_hints(kind, include_extras=True).items():
            yield (*path, name)
            yield from _paths(below, (*path, name))


def _unwrapped(kind: Any) -> Any:
    """Unwrap the type of a key that is optional or validated after it is read."""
    while True:
        if get_origin(kind) is UnionType or get_origin(kind) is Union:
            kind = next(one for one in get_args(kind) if one is not type(None))
        elif get_origin(kind) is Annotated and not isinstance(get_args(kind)[1], PlainValidator):
            kind = get_args(kind)[0]
        else:
            return kind


def _dotted(path: tuple[object, ...]) -> str:
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in path if step != "[key]"
    ]
    return "".join(steps).removeprefix(".")


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the sentence that reports an unknown key, with the closest `known` one."""
    return f"unknown key {quoted(key)}{did_you_mean(key, known)}"


def invalid(text: str) -> PydanticCustomError:
    """Return the error that a validator raises to report this sentence."""
    return PydanticCustomError("invalid", "{text}", {"text": text})


def show(value: object) -> str:
    """Format a config value for a message: short, and in YAML's words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "keys with values"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    return str(value)[:80]
