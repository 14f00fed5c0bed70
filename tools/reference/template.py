"""The config.yaml of `cohort init`: every key with its default, commented out."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from cohort.repository import parse_yaml
from tools.reference.page import flow
from tools.reference.schemas import CONFIG, Schema, schema_of

HEAD = """\
# yaml-language-server: $schema=../.cohort/config.schema.json
#
# The configuration of one model. Every key is optional: remove "# " before keys that you change,
# and before their parent key. `cohort check` reports errors. Values are the defaults, or examples
# if the text has another default.
"""

WIDTH = 96


def template() -> str:
    """Return the text of the file."""
    example = parse_yaml(CONFIG.example, CONFIG.name)
    return HEAD + "\n".join(_lines(schema_of(CONFIG), example, "")) + "\n"


def _lines(node: Schema, example: Any, indent: str) -> Iterator[str]:
    for key, below in node["properties"].items():
        if not indent:
            yield ""
        comment = f"# {indent}## "
        yield from wrap(
            below["description"],
            WIDTH,
            initial_indent=comment,
            subsequent_indent=comment,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if "properties" in below:
            yield f"# {indent}{key}:"
            yield from _lines(below, example[key], indent + "  ")
        else:
            yield f"# {indent}{key}: {flow(below.get('default') or example[key])}"
