"""The page of every key, the JSON Schemas and what `cohort init` writes agree with the server."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cohort.pipelines.document import parse_pipeline, parse_processing
from cohort.repository import (
    ConfigProblems,
    ModelConfig,
    Problem,
    parse_model_config,
    parse_yaml,
    validate_tree,
)
from cohort.settings import read_settings
from tests.examples import examples
from tools.reference.page import file_rows, flow, setting_examples, setting_rows
from tools.reference.schemas import (
    CONFIG,
    KEYS,
    PIPELINE,
    RECIPE,
    ROLLOUTS,
    OperatorFile,
    Schema,
    schema_of,
)
from tools.reference.template import template
from tools.reference.written import written

FILES = pytest.mark.parametrize(
    "file", [CONFIG, ROLLOUTS, KEYS, RECIPE], ids=lambda file: file.name
)
SCHEMAS = [CONFIG, ROLLOUTS, PIPELINE]
WITH_SCHEMA = pytest.mark.parametrize("file", SCHEMAS, ids=lambda file: file.name)


def test_what_is_written_is_what_its_sources_say() -> None:
    """The committed reference pages equal the output of `make reference`."""
    stale = [path for path, text in written().items() if path.read_text(encoding="utf-8") != text]
    assert not stale


@FILES
def test_each_key_has_an_example_that_the_server_takes(file: OperatorFile) -> None:
    """The file on the page has every key, and nothing is wrong with it."""
    tree = parse_yaml(file.example, file.name)
    validate_tree(tree, file.kind, file.name, file.ranges)
    rows = file_rows(file)
    assert rows
    assert not [row.name for row in rows if not row.example and row.kind != "keys"]


def test_each_setting_has_an_example_that_the_server_takes() -> None:
    """The examples are in tools/reference/examples/settings.env; no other variable has one."""
    examples = setting_examples()
    assert [name for name, example in examples.items() if not example] == []
    assert [row.name for row in setting_rows()] == list(examples)
    read_settings({name.removeprefix("COHORT_").lower(): one for name, one in examples.items()})


@FILES
def test_a_default_in_a_docstring_is_the_field_s(file: OperatorFile) -> None:
    """This holds for each default that can be written."""
    compared = 0
    for text, default in _defaults(schema_of(file)):
        words = text.rpartition(" Default: ")[2].removesuffix(".")
        known = "none" if default == [] else "the first" if default == "" else flow(default)
        if default == [60.0]:  # a number stands for a list of it
            known = "60"
        assert words.partition(":")[0] in {known, "none"}, text
        compared += 1
    assert compared


def _defaults(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if "default" in node and isinstance(node.get("description"), str):
            yield node["description"], node["default"]
        for below in node.values():
            yield from _defaults(below)
    elif isinstance(node, list):
        for below in node:
            yield from _defaults(below)


def test_what_init_writes_says_nothing_yet() -> None:
    """Every line is a comment, so that each key has its default."""
    assert parse_model_config(template(), "mine/config.yaml") == ModelConfig()


def test_what_init_writes_is_a_config_without_its_comment_signs() -> None:
    """Every key of the type is there, and its value is one that the server takes."""
    bare = "\n".join(line.removeprefix("# ") for line in template().splitlines()[5:])
    parse_model_config(bare, "mine/config.yaml")
    tree: Any = parse_yaml(bare, "mine/config.yaml")
    assert set(tree) == set(ModelConfig.__dataclass_fields__)
    assert set(tree["batching"]) == set(schema_of(CONFIG)["properties"]["batching"]["properties"])


# -- the schemas

VALIDATORS: Mapping[str, jsonschema_rs.Draft202012Validator] = {
    file.name: jsonschema_rs.Draft202012Validator(schema_of(file)) for file in SCHEMAS
}

# Rules about several values, which an editor does not get.
TOGETHER = re.compile(
    "must not all have weight 0|each step must be larger than the one before"
    "|write one such as max|is neither true nor false|names no tensor"
)

# Values that some key takes, and others that none does. A number that is whole but written 8.0 is
# left out: JSON Schema takes it for a whole number, and YAML's reader does not.
VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 64, 65, 1024, 1025, 86_400, 10**18 - 1, 10**18, 10**30]
    ),
    st.integers(),
    st.floats(-1e12, 1e12).filter(lambda number: not number.is_integer()),
    st.sampled_from(
        ["", "all", "latest", "prefer", "require_all", "basic", "cuda", "trt", "gpu", "stable"]
    ),
    st.sampled_from(
        ["CUDAExecutionProvider", "x-user-id", "a b", "5%", "0%", "0.5 %", "100%", "5"]
    ),
    st.text("ab.-_%1", max_size=3),
    st.sampled_from(
        [[], ["cpu"], [1, 3], [0], ["5%", "7.5%"], ["7%", "5%"], [60, 0.5], ["cuda", {"cpu": {}}]]
    ),
    st.sampled_from(
        [{}, {"latest": 2}, {"latest": 0}, {"cuda": {"device_id": 0}}, {"cuda": {"a": None}}]
    ),
    st.sampled_from([{"header": "x-a"}, {"header": "x-a", "parameter": "b"}, {"header": "a b"}]),
)


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in a tree."""
    if path:
        yield path
    if isinstance(node, dict | list):
        for key, below in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _places(below, (*path, key))


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """Return a tree in which up to three things were replaced, taken out, or added."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(tree))
        if not places:
            break
        *above, last = draw(st.sampled_from(places))
        node = tree
        for step in above:
            node = node[step]
        change = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if change == "replace":
            node[last] = copy.deepcopy(draw(VALUES))
        elif change == "remove":
            del node[last]
        elif isinstance(node, list):
            node.append(copy.deepcopy(draw(VALUES)))
        else:
            name = draw(st.sampled_from(["unknown", "max_batch_size", "ramp", "9 lives"]))
            node[name] = copy.deepcopy(draw(VALUES))
    return tree


CHANGED = {file.name: changed(parse_yaml(file.example, file.name)) for file in SCHEMAS}


def _problems(file: OperatorFile, tree: Any) -> list[Problem]:
    """Return the server's problems with a tree."""
    reads: list[Callable[[], object]] = [
        lambda: validate_tree(tree, file.kind, file.name, file.ranges)
    ]
    if file is PIPELINE:
        text = json.dumps(tree)
        reads = [lambda: parse_pipeline(text), lambda: parse_processing(text)]
    found: list[Problem] = []
    for read in reads:
        try:
            read()
        except ConfigProblems as error:
            found += error.problems
    return found


@WITH_SCHEMA
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_editor_takes_what_the_server_takes(file: OperatorFile, data: st.DataObject) -> None:
    """For any change of a file, its schema refuses it if and only if the server does."""
    tree = data.draw(CHANGED[file.name])
    told = [str(one) for one in _problems(file, tree) if not TOGETHER.search(one.sentence)]
    complaint = "\n".join(told)
    refused = [str(one) for one in VALIDATORS[file.name].iter_errors(tree)]
    assert bool(refused) == bool(complaint), f"{tree}\nserver: {complaint}\nschema: {refused}"


@WITH_SCHEMA
def test_a_schema_is_one_of_its_draft(file: OperatorFile) -> None:
    """The example passes it."""
    schema: Schema = schema_of(file)
    assert jsonschema_rs.meta.is_valid(schema)
    assert VALIDATORS[file.name].is_valid(parse_yaml(file.example, file.name))


def test_the_unit_of_a_length_is_not_requests() -> None:
    """The multiple of a padded axis counts the axis's elements."""
    units = {row.name: row.unit for row in file_rows(CONFIG)}
    assert units["batching.pad.<input>.multiple"] == ""
    assert units["batching.max_queue_size"] == "requests"
