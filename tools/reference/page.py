"""The page docs/reference/configuration.md: every key and setting."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cohort.settings import Settings, default_in_words, variable
from tools.reference.schemas import (
    CONFIG,
    EXAMPLES,
    KEYS,
    NULL,
    RECIPE,
    ROLLOUTS,
    OperatorFile,
    Schema,
    schema_of,
)

# The placeholder for keys of any name, by their parent key.
NAMED_BY = {
    "": "<model>",
    "variants": "<variant>",
    "pad": "<input>",
    "inputs": "<input>",
    "outputs": "<output>",
}

UNITS = {"ms": "ms", "s": "s", "seconds": "s", "minutes": "min", "mb": "MiB"}
"""The unit of a number, by the last part of its name."""

COUNTED = re.compile(
    r"(?:\w+ ){0,5}?(requests per second|requests|connections|rows|threads|tokens|models|nodes)\b",
    re.IGNORECASE,
)
"""The unit of other numbers, from the beginning of their text."""

SHARE = re.compile(r"\b(?:a|the|its) share of", re.IGNORECASE)


BAR = "\\|"
DASH = "\N{EN DASH}"

DESCRIBED_ELSEWHERE = {"add_image_input.image"}
"""Keys whose own keys are those of another table, which their text names."""


class Row(NamedTuple):
    """The table cells of a key or setting; `default` is "" for a required key."""

    name: str
    kind: str
    default: str
    unit: str
    bounds: str
    text: str
    example: str

    def cells(self) -> list[str]:
        """Return the cells of the table's line, the example last."""
        cells = [
            f"`{self.name}`",
            self.kind,
            self.default or "required",
            self.unit,
            self.bounds,
            self.text.replace("<", "&lt;"),
            f"`{self.example}`" if self.example else "",
        ]
        return [cell.replace("|", BAR) for cell in cells]


COLUMNS = ["type", "default", "unit", "range", "meaning", "example"]


def page() -> str:
    """Return the text of the page."""
    parts = {"table settings": _table(["setting", *COLUMNS], setting_rows())}
    for file in (CONFIG, ROLLOUTS, KEYS, RECIPE):
        parts[f"example {file.name}"] = file.example.rstrip()
        parts[f"table {file.name}"] = _table(["key", *COLUMNS[:-1]], file_rows(file))
    text = Path(__file__).with_name("configuration.md").read_text(encoding="utf-8")
    return re.sub(r"{{ (.+?) }}", lambda found: parts[found[1]], text)


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table with the first cells of each row; the example of a file has all keys."""
    lines = [columns, ["---"] * len(columns), *(row.cells()[: len(columns)] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- keys of files


def file_rows(file: OperatorFile) -> list[Row]:
    """Return every key of a file, in the types' order."""
    return list(_rows(schema_of(file), "", ""))


def _rows(node: Schema, path: str, key: str) -> Iterator[Row]:
    for branch in _branches(node):
        for name, below in branch.get("properties", {}).items():
            here = f"{path}{name}"
            if "description" in below:
                yield _row(here, name, below, needed=name in branch.get("required", ()))
                if here not in DESCRIBED_ELSEWHERE:
                    yield from _rows(below, f"{here}.", name)
        if isinstance(below := branch.get("additionalProperties"), dict) and key in NAMED_BY:
            yield from _rows(below, f"{path}{NAMED_BY[key]}.", "")
        if isinstance(below := branch.get("items"), dict):
            yield from _rows(below, path, "")


def _branches(node: Schema) -> list[Schema]:
    if "properties" in node:
        return [node]
    return [one for one in node.get("anyOf", [node]) if one != NULL]


def _row(path: str, name: str, node: Schema, *, needed: bool) -> Row:
    text, _, default = node["description"].partition(" Default: ")
    kind = " or ".join(_kinds(node))
    examples = node.get("examples") or [
        one for b in _branches(node) for one in b.get("examples", ())
    ]
    example = f"{name}: {flow(examples[0])}" if examples else ""
    words = default.removesuffix(".") or ("" if needed else DASH if kind == "keys" else "none")
    return Row(path, kind, words, _unit(name, kind, text), _bounds(node), text, example)


def _kinds(node: Schema) -> Iterator[str]:
    if "enum" in node:
        yield ", ".join(f"`{one}`" for one in node["enum"])
    elif "const" in node:
        yield f"`{node['const']}`"
    elif "anyOf" in node and "properties" not in node:
        for one in _branches(node):
            yield from _kinds(one)
    else:
        kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
        for kind in kinds:
            if kind == "array":
                items = node["items"]
                if "enum" in items:
                    yield f"list of {', '.join(f'`{word}`' for word in items['enum'])}"
                    continue
                of = ["provider"] if "enum" in str(items) else list(_kinds(items))
                yield "list of " + " or ".join(f"{one}s".replace("keyss", "keys") for one in of)
            elif kind != "null":
                yield KINDS[kind]


KINDS: Mapping[str, str] = {
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "string": "string",
    "object": "keys",
}


def _unit(name: str, kind: str, text: str) -> str:
    if "number" not in kind and "integer" not in kind:
        return ""
    if unit := UNITS.get(name.rpartition("_")[2]):
        return unit
    if SHARE.search(text):
        return "share"
    counted = COUNTED.match(text)
    return counted[1].lower() if counted else ""


def _bounds(node: Schema) -> str:
    found = [
        one
        for branch in _branches(node)
        for one in (branch, branch.get("items", {}))
        if "minimum" in one or "maximum" in one
    ]
    return _range(found[0].get("minimum"), found[0].get("maximum")) if found else ""


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"≥ {_number(low)}" if low is not None else ""
    return f"{_number(low)}{DASH}{_number(high)}"


def _number(number: float | None) -> str:
    assert number is not None
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def flow(value: Any) -> str:
    """Write a value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


# -- settings


def setting_rows() -> list[Row]:
    """Return every setting, in the type's order."""
    examples = setting_examples()
    properties = Settings.model_json_schema()["properties"]
    return [
        _setting(name, properties[name], field.description or "", examples[variable(name)])
        for name, field in Settings.model_fields.items()
    ]


def setting_examples() -> dict[str, str]:
    """Return an example for each setting by its variable; "" if there is none."""
    lines = (EXAMPLES / "settings.env").read_text(encoding="utf-8").splitlines()
    given = dict(line.split("=", 1) for line in lines)
    return {variable(name): given.pop(variable(name), "") for name in Settings.model_fields} | given


def _setting(name: str, node: Schema, text: str, example: str) -> Row:
    kind = " or ".join(_setting_kinds(node))
    default = default_in_words(name) or f"`{flow(node['default'])}`"
    unit = _unit(name, kind, text)
    assigned = f"{variable(name)}={example}"
    return Row(variable(name), kind, default, unit, _bounds(node), text, assigned)


def _setting_kinds(node: Schema) -> Iterator[str]:
    for one in _branches(node):
        if "enum" in one:
            yield ", ".join(f"`{choice}`" for choice in one["enum"])
        elif one.get("format") in {"path", "password"}:
            yield {"path": "path", "password": "secret"}[one["format"]]
        elif one["type"] == "array":
            yield "list"
        else:
            yield KINDS[one["type"]]
