"""Facts about one name of the public surface: its types, limits, default and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

from tools.reference.schemas import Schema

Facts = Mapping[str, Any]
"""Facts by their names, as values of JSON."""

Items = Mapping[str, Facts]
"""Facts by the name that has them, such as a setting's."""

_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "minItems", "maxItems", "format", "pattern")

_MAX_DEPTH = 12


def text_mark(text: str | None) -> str:
    """Return a checksum of a text without its line breaks; "" if there is none."""
    return f"{crc32(' '.join(text.split()).encode()):08x}" if text else ""


def schema_items(node: Schema, name: str, definitions: Schema, depth: int = 0) -> Iterator[Any]:
    """Yield (name, facts) of each property of a JSON Schema; those below it are `name.key`.

    definitions: The targets of references, by their path.
    """
    branches = list(_branches(node, definitions))
    for branch in branches if depth < _MAX_DEPTH else ():
        needed = branch.get("required", ())
        for key, below in branch.get("properties", {}).items():
            here = f"{name}.{key}"
            yield here, {**_facts(below, definitions), "required": key in needed}
            yield from schema_items(below, here, definitions, depth + 1)
        for below in (branch.get("additionalProperties"), branch.get("items")):
            if isinstance(below, dict) and below:
                yield from schema_items(below, f"{name}.*", definitions, depth + 1)


def _facts(node: Schema, definitions: Schema) -> dict[str, Any]:
    branches = list(_branches(node, definitions))
    kinds = {kind for branch in branches for kind in _kinds(branch)}
    found: dict[str, Any] = {"kinds": sorted(kinds)}
    choices = [one for branch in branches for one in branch.get("enum", ())]
    if choices:
        found["choices"] = sorted(choices, key=str)
    for branch in [*branches, node]:
        found |= {key: branch[key] for key in _LIMITS if key in branch}
    if node.get("default") is not None:
        found["default"] = node["default"]
    if mark := text_mark(node.get("description")):
        found["text"] = mark
    return found


def _kinds(branch: Schema) -> list[str]:
    kinds = branch.get("type", "any")
    return kinds if isinstance(kinds, list) else [kinds]


def _branches(node: Schema, definitions: Schema) -> Iterator[Schema]:
    while "$ref" in node:
        node = definitions[node["$ref"]]
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in node.get(key, ())]
    if not parts or "properties" in node:
        yield node
    for part in parts:
        yield from _branches(part, definitions)
