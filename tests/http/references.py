"""Reading an OpenAPI document as one without references."""

from __future__ import annotations

from typing import Any


def resolved(document: dict[str, Any], schema: Any) -> Any:
    """Return a schema with its references resolved."""
    if isinstance(schema, list):
        return [resolved(document, one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return resolved(document, found)
    return {key: resolved(document, value) for key, value in schema.items()}
