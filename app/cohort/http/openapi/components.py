"""Stable names for the objects in schemas, so that client generators need not invent any.

Invented names depend on the other loaded models. Equal objects of two models become one, named
after the first, and `Simple` becomes `Simple17`. Here each object is a component named after its
place, so that a client's classes keep their names.
"""

from __future__ import annotations

import re
from typing import Any

from cohort.http.openapi.schemas import Schema

_FORMS = ("oneOf", "anyOf")


def take_components(operation: Schema) -> dict[str, Schema]:
    """Replace the objects in an operation's JSON bodies by references, and return them by name.

    Names begin with the operation's unique identifier.
    """
    found: dict[str, Schema] = {}
    name = operation["operationId"]
    for place, content in (
        (name, operation["requestBody"]["content"]),
        (f"{name}_response", operation["responses"]["200"]["content"]),
    ):
        json = content["application/json"]
        json["schema"] = _taken(json["schema"], place, found)
    return found


def _taken(schema: Any, name: str, found: dict[str, Schema]) -> Any:
    """Return `schema` with references for its objects, or a reference if it is an object."""
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key != "title"}
    for form in _FORMS:
        if form in schema:
            made[form] = [
                _taken(one, f"{name}_{_word(one, number)}", found)
                for number, one in enumerate(schema[form], 1)
            ]
    if "items" in schema:
        made["items"] = _taken(schema["items"], f"{name}_item", found)
    if "properties" not in schema:
        return made
    made["properties"] = {
        key: _taken(one, f"{name}_{_plain(key)}", found)
        for key, one in schema["properties"].items()
    }
    name = _free(name, found)
    found[name] = made
    return {"$ref": f"#/components/schemas/{name}"}


def _word(schema: Any, number: int) -> str:
    """Return the word that identifies a form: its title, or its number."""
    title = schema.get("title") if isinstance(schema, dict) else None
    return _plain(title.lower()) if title else f"form_{number}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:40] or "x"


def _free(name: str, found: dict[str, Schema]) -> str:
    number, free = 1, name
    while free in found:
        number += 1
        free = f"{name}_{number}"
    return free
