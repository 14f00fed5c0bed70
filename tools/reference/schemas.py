"""JSON Schemas of an operator's files, from the types that the server reads them into.

Pydantic derives the types and defaults. Added are the texts of the types' docstrings, the limits
that the server checks separately, and an example for each key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from cohort.auth.keys import KEY_RANGES, ApiKey
from cohort.errors import MODEL_NAME
from cohort.pipelines.document import MAX_STEPS, MAX_TENSORS, NAME_SCHEMA, STEP_NAME, Pipeline
from cohort.pipelines.document import RANGES as PIPELINE_RANGES
from cohort.repository import ModelConfig, Range, parse_yaml
from cohort.repository.model_config import RANGES, REQUEST_SECONDS
from cohort.rollouts.config import ROLLOUT_RANGES, Written
from cohort_prepare.recipe import RECIPE_RANGES, ModelRecipe

EXAMPLES = Path(__file__).with_name("examples")

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}


class OperatorFile(NamedTuple):
    """A file that an operator writes: the type it is read into, and its numbers' limits by path.

    extend: Adds to its schema what is not in the type; default: nothing.
    """

    name: str
    title: str
    kind: Any
    ranges: Mapping[str, Range]
    extend: Callable[[Schema], None] = lambda _: None

    @property
    def example(self) -> str:
        """The text of a file that has every key."""
        return (EXAMPLES / self.name).read_text(encoding="utf-8")


def _extend_config(schema: Schema) -> None:
    """Add the default of the time limit, which the type leaves open for language models."""
    schema["properties"]["timeout_ms"]["default"] = REQUEST_SECONDS * 1000


CONFIG = OperatorFile(
    "config.yaml", "Cohort: config.yaml of a model", ModelConfig, RANGES, _extend_config
)
ROLLOUTS = OperatorFile("rollouts.yaml", "Cohort: rollouts.yaml", Written, ROLLOUT_RANGES)
RECIPE = OperatorFile("recipe.yaml", "Cohort: a recipe for a model", ModelRecipe, RECIPE_RANGES)
KEYS = OperatorFile("keys.yaml", "Cohort: API keys", list[ApiKey], KEY_RANGES)


def _extend_pipeline(schema: Schema) -> None:
    """Add the keys that inputs and outputs share with those of a config.yaml, and limits."""
    config, keys = schema_of(CONFIG)["properties"], schema["properties"]
    for side in ("inputs", "outputs"):
        for branch in keys[side].get("anyOf", [keys[side]]):
            if "additionalProperties" in branch:
                branch |= {"minProperties": 1, "maxProperties": MAX_TENSORS}
                branch["propertyNames"] = NAME_SCHEMA
                kinds = branch["additionalProperties"]["anyOf"]
                one = next(kind for kind in kinds if kind["type"] == "object")
                one["properties"] |= config[side]["additionalProperties"]["properties"]
    steps = keys["steps"]
    steps |= {"minProperties": 1, "maxProperties": MAX_STEPS}
    steps["propertyNames"] = {"pattern": f"^{STEP_NAME.pattern}$"}
    step = steps["additionalProperties"]["properties"]
    step["model"]["pattern"] = f"^{MODEL_NAME.pattern}$"
    step["inputs"] |= {"minProperties": 1, "maxProperties": MAX_TENSORS}


PIPELINE = OperatorFile(
    "pipeline.yaml", "Cohort: pipeline.yaml", Pipeline, PIPELINE_RANGES, _extend_pipeline
)


def schema_of(file: OperatorFile) -> Schema:
    """Return the JSON Schema of a file, without references."""
    derived = TypeAdapter(file.kind).json_schema()
    schema = _described(_inlined(derived, derived.pop("$defs", {})))
    for path, limits in file.ranges.items():
        for node in _at(schema, path.split(".")):
            node |= {"minimum": limits.low, "maximum": limits.high}
    file.extend(schema)
    _add_examples(schema, parse_yaml(file.example, file.name))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": file.title,
        **schema,
    }


def _inlined(node: Any, definitions: Mapping[str, Schema]) -> Any:
    """Replace references by their targets, and remove keywords without information."""
    if isinstance(node, list):
        return [_inlined(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        named = definitions[node["$ref"].removeprefix("#/$defs/")]
        node = {**named, **{key: value for key, value in node.items() if key != "$ref"}}
    found = {key: _inlined(value, definitions) for key, value in node.items()}
    if isinstance(found.get("title"), str):
        del found["title"]
    if isinstance(found.get("default", 0), dict | None):  # made by the server in its own way
        del found["default"]
    return found


def _described(node: Any) -> Any:
    """Give each key its text from the docstring of its class."""
    if isinstance(node, list):
        return [_described(one) for one in node]
    if not isinstance(node, dict):
        return node
    node = {key: _described(value) for key, value in node.items()}
    if "description" in node and "properties" in node:
        texts = key_texts(node.pop("description"))
        for key, value in node["properties"].items():
            text, default = texts[key]
            value["description"] = f"{text} Default: {default}." if default else text
    return node


class KeyText(NamedTuple):
    """A key's text in a docstring, and its default in words; "" if none is given."""

    text: str
    default: str


def key_texts(docstring: str) -> dict[str, KeyText]:
    """Return the texts of a docstring's keys: `max_queue_size: Requests in …; default 16.`."""
    lines = cleandoc(docstring).replace("\n    ", " ")
    found = re.findall(r"^(\w+): (.+?)\.?$", lines, re.MULTILINE)
    return {key: _without_default(text) for key, text in found}


def _without_default(text: str) -> KeyText:
    head, _, tail = text.partition("; default")
    default, _, more = tail.lstrip(": ").partition(". ")
    words = re.sub(r'^(None|""): ', "", default).replace('""', "none").replace('"', "")
    words = re.sub(r"^(None|True|False)\b", lambda found: found[0].lower(), words)
    return KeyText(f"{head}. {more}." if more else f"{head}.", words)


def _at(node: Schema, path: Sequence[str]) -> Iterator[Schema]:
    """Yield the schemas of numbers at a path, in which `*` is any key or index."""
    for branch in node.get("anyOf", ()):
        yield from _at(branch, path)
    if not path:
        if node.get("type") in {"integer", "number"}:
            yield node
        return
    below = node.get("properties", {}).get(path[0])
    if path[0] == "*":
        below = node.get("additionalProperties") or node.get("items")
    if isinstance(below, dict):
        yield from _at(below, path[1:])


def _add_examples(node: Schema, value: Any) -> None:
    """Add the example's value to each key; the first if there are several."""
    if "properties" in node:
        for key, one in value.items():
            if key in node["properties"]:
                _add_examples(node["properties"][key], one)
    elif isinstance(below := node.get("additionalProperties"), dict):
        for one in value.values():
            _add_examples(below, one)
    elif "properties" in node.get("items", {}):
        for one in value:
            _add_examples(node["items"], one)
    elif len(branches := [one for one in node.get("anyOf", ()) if one != NULL]) == 1:
        _add_examples(branches[0], value)
    else:
        node.setdefault("examples", [value])
