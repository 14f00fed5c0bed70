"""Tools that a chat offers to the model, and the form of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cohort.errors import InvalidInput, did_you_mean, quoted
from cohort.generation import Guide, ToolCall, ToolReader
from cohort.http.openai.fields import UNSUPPORTED, Fields, objects, wrong_type, wrong_value

MAX_TOOLS = 128
MAX_DESCRIPTION = 1 << 16
MAX_GRAMMAR = 1 << 18
"""Characters of a JSON schema."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a chat.

    offered: Their descriptions, as the template reads them; empty: the model may call no tools.
    forced: The tool that must be called; "": any tool that must be called, if `guide` is there.
    guide: The form of an answer that must call a tool; None: the model decides.
    several: True if the model may call several tools at once.
    """

    offered: Sequence[Mapping[str, Any]] = ()
    forced: str = ""
    guide: Guide | None = None
    several: bool = True


def read_tools(fields: Fields) -> Tools:
    """Read the tools and the choice among them. Raises InvalidInput."""
    tools = fields.items("tools", MAX_TOOLS) or []
    several = fields.flag("parallel_tool_calls", default=True)
    offered = [_read_tool(one) for one in objects(tools, "tools")]
    choice = fields.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return Tools(() if choice == "none" else offered, several=several)
    if not offered:
        raise wrong_value("tool_choice", "needs 'tools'")
    if choice == "required":
        schema = {"anyOf": [_call_schema(one["function"]) for one in offered]}
        return Tools(offered, "", _guide(schema), several=False)
    if not isinstance(choice, dict):
        raise wrong_value(
            "tool_choice", "must be 'none', 'auto', 'required' or an object that names a function"
        )
    forced = _read_named(Fields(choice, "tool_choice"), offered)
    return Tools(offered, forced["name"], _guide(forced.get("parameters") or ANY_OBJECT), False)


ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def _read_tool(fields: Fields) -> dict[str, Any]:
    fields.required("type")
    if fields.of_type("type", str) != "function":
        name = fields.name("type")
        raise InvalidInput(f"{name!r} must be 'function'", name, UNSUPPORTED)
    fields.required("function")
    function = fields.inside("function")
    if function is None:
        raise wrong_type(fields.name("function"), "an object", None)
    function.required("name")
    name = function.text("name", MAX_DESCRIPTION) or ""
    if not _NAME.fullmatch(name):
        raise wrong_value(
            function.name("name"), "must have 1 to 64 letters, digits, '_', '.' and '-'"
        )
    described: dict[str, Any] = {"name": name}
    if (text := function.text("description", MAX_DESCRIPTION)) is not None:
        described["description"] = text
    if (parameters := function.of_type("parameters", dict)) is not None:
        described["parameters"] = parameters
    function.flag("strict")
    return {"type": "function", "function": described}


def _read_named(fields: Fields, offered: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    fields.required("function")
    function = fields.inside("function")
    name = "" if function is None else function.of_type("name", str) or ""
    by_name = {one["function"]["name"]: one["function"] for one in offered}
    if name not in by_name:
        hint = did_you_mean(name, by_name)
        raise wrong_value("tool_choice.function.name", f"is not in 'tools': {quoted(name)}{hint}")
    found: Mapping[str, Any] = by_name[name]
    return found


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": function.get("parameters") or ANY_OBJECT,
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _guide(schema: Mapping[str, Any]) -> Guide:
    return Guide("json_schema", _grammar(schema, "tools"))


def _grammar(schema: Mapping[str, Any], place: str) -> str:
    try:
        text = orjson.dumps(schema).decode()
    except TypeError:  # orjson's limit of about 250 levels
        raise wrong_value(place, "has a schema that is nested too deeply") from None
    if len(text) > MAX_GRAMMAR:
        raise wrong_value(place, f"has a schema of more than {MAX_GRAMMAR} characters")
    return text


def read_response_format(fields: Fields) -> Guide | None:
    """Return the form that the answer must have; None: any text. Raises InvalidInput."""
    form = fields.inside("response_format")
    if form is None:
        return None
    form.required("type")
    kind = form.one_of("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    if kind == "json_object":
        return Guide("json")
    form.required("json_schema")
    described = form.inside("json_schema")
    if described is None:
        raise wrong_type(form.name("json_schema"), "an object", None)
    described.required("schema")
    schema = described.of_type("schema", dict) or {}
    return Guide("json_schema", _grammar(schema, described.name("schema")))


class ForcedCall:
    """Reads an answer that is a call by its guide. Implements `ToolReader`.

    name: The tool, if the answer has its arguments only; "": the answer names it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._text: list[str] = []

    def add(self, text: str) -> Sequence[str | ToolCall]:
        """Hold the text back."""
        self._text.append(text)
        return ()

    def rest(self) -> Sequence[str | ToolCall]:
        """Return the call, or the text of one that was cut."""
        text = "".join(self._text)
        try:
            call = orjson.loads(text)
            if self._name:
                return [ToolCall(self._name, text)]
            return [ToolCall(str(call["name"]), orjson.dumps(call["arguments"]).decode())]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return [text] if text else ()


class FirstCall:
    """Passes only the first tool call on. Implements `ToolReader`."""

    def __init__(self, reader: ToolReader) -> None:
        self._reader = reader
        self._called = False

    def add(self, text: str) -> Sequence[str | ToolCall]:
        """Return the text, and the first call."""
        return self._first(self._reader.add(text))

    def rest(self) -> Sequence[str | ToolCall]:
        """Return the last text, and the call if it is the first."""
        return self._first(self._reader.rest())

    def _first(self, parts: Sequence[str | ToolCall]) -> Sequence[str | ToolCall]:
        kept = []
        for part in parts:
            if isinstance(part, str) or not self._called:
                kept.append(part)
            self._called |= isinstance(part, ToolCall)
        return kept
