"""The messages of a chat, for the model's template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from cohort.errors import InvalidInput, quoted
from cohort.http.openai.fields import (
    TYPE,
    UNSUPPORTED,
    Fields,
    objects,
    wrong_type,
    wrong_value,
)
from cohort.http.openai.options import MAX_NAME

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXTS: Mapping[str, str] = {"prompt": "use 'messages', or /v1/completions"}
MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_CALLS = 128

Message = dict[str, Any]


def read_messages(fields: Fields) -> list[Message]:
    """Return the messages, each with its role and its content as one text. Raises InvalidInput."""
    fields.required("messages", TEXTS)
    messages = fields.items("messages", MAX_MESSAGES) or []
    if not messages:
        raise wrong_value("messages", "must not be empty")
    return [_read_message(one) for one in objects(messages, "messages")]


def _read_message(fields: Fields) -> Message:
    fields.required("role")
    role = fields.one_of("role", ROLES)
    if role == "developer":
        role = "system"  # its name before; templates know no other
    message: Message = {"role": role, "content": _read_content(fields)}
    if (name := fields.text("name", MAX_NAME)) is not None:
        message["name"] = name
    for key in ("audio", "function_call"):
        if fields.get(key) is not None:
            raise InvalidInput(
                f"{fields.name(key)!r} is not supported", fields.name(key), UNSUPPORTED
            )
    if role == "assistant" and (calls := fields.items("tool_calls", MAX_CALLS)):
        message["tool_calls"] = [
            _read_call(one) for one in objects(calls, fields.name("tool_calls"))
        ]
    if role == "tool":
        fields.required("tool_call_id")
        message["tool_call_id"] = fields.text("tool_call_id", MAX_NAME)
    return message


def _read_content(fields: Fields) -> str:
    """Return the text of a message. It may be missing in an assistant's message of calls only."""
    content = fields.get("content")
    place = fields.name("content")
    if isinstance(content, str):
        return content
    if content is None:
        if fields.get("role") != "assistant":
            fields.required("content")
        return ""
    if not isinstance(content, list):
        raise wrong_type(place, "a string or a list of parts", content)
    if len(content) > MAX_PARTS:
        raise wrong_value(place, f"has {len(content)} parts, more than {MAX_PARTS}")
    return "\n".join(_read_part(one) for one in objects(content, place))


def _read_part(fields: Fields) -> str:
    fields.required("type")
    kind = fields.of_type("type", str) or ""
    key = {"text": "text", "refusal": "refusal"}.get(kind)
    if key is None:
        name = fields.name("type")
        message = f"{name!r} is {quoted(kind)}; this server reads parts of type 'text' only"
        raise InvalidInput(message, name, UNSUPPORTED)
    fields.required(key)
    return fields.of_type(key, str) or ""


def _read_call(fields: Fields) -> Mapping[str, Any]:
    """Return a call that the model made before; templates read arguments as an object."""
    fields.required("function")
    function = fields.inside("function")
    if function is None:
        raise wrong_type(fields.name("function"), "an object", None)
    function.required("name")
    name, arguments = function.text("name", MAX_NAME), function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            arguments = None
    if not isinstance(arguments, dict):
        place = function.name("arguments")
        raise InvalidInput(f"{place!r} must be the text of a JSON object", place, TYPE)
    return {
        "id": fields.text("id", MAX_NAME) or "",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
