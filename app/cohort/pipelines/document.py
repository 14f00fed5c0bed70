"""Parser of `pipeline.yaml`, the file in which an operator defines a graph of models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, WithJsonSchema, with_config

from cohort.errors import MODEL_NAME, MODEL_NAME_RULE, quoted
from cohort.pipelines.conditions import Condition, ConditionWrong, parse_condition
from cohort.repository import (
    PIPELINE_FILE,
    PROCESSING_RANGES,
    ConfigProblems,
    InputConfig,
    OutputConfig,
    Problem,
    ProcessingConfig,
    Range,
    invalid,
    parse_yaml,
    show,
    unknown_key,
    validate_tree,
)
from cohort.tensors import BY_NAME

MAX_STEPS = 64
MAX_TENSORS = 256
"""Maximum number of inputs or outputs of a pipeline, and of inputs of a step."""

STEP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")

MAX_NAME = 256
"""Maximum number of characters of a tensor's name."""

Sources = tuple[str, ...]
"""Names of tensors, inputs of the pipeline or `step.output`; the first available one is used."""


NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}

SOURCES_SCHEMA: dict[str, Any] = {
    "anyOf": [
        NAME_SCHEMA,
        {"type": "array", "items": NAME_SCHEMA, "minItems": 1, "maxItems": MAX_STEPS},
    ]
}

OUTPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        *SOURCES_SCHEMA["anyOf"],
        {
            "type": "object",
            "properties": {
                "from": {
                    **SOURCES_SCHEMA,
                    "description": "step.output; of a list, the first that there is.",
                }
            },
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}

INPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "datatype": {
                    "enum": [*BY_NAME, None],
                    "description": "As the Open Inference Protocol names it. Default: what steps "
                    "take.",
                },
                "shape": {
                    "type": ["array", "null"],
                    "items": {"type": ["string", "integer", "null"], "minimum": 0},
                    "description": "Lengths, and names for those that vary. Default: as steps do.",
                },
            },
            "additionalProperties": False,
        },
        {"type": "null"},
    ]
}


def _parse_sources(value: object) -> Sources:
    listed = value if isinstance(value, list) else [value]
    if listed and all(isinstance(one, str) and one for one in listed):
        if len(listed) > MAX_STEPS:
            raise invalid(f"must be {MAX_STEPS} tensors at most, got {len(listed)}")
        for one in listed:
            if why := _why_no_name(one):
                raise invalid(why)
        return tuple(dict.fromkeys(listed))
    raise invalid(f"must be a tensor, such as step.output, or a list of some, got {show(value)}")


def _why_no_name(name: Any) -> str:
    """Return the reason why a string cannot name a tensor; "" if it can."""
    if 0 < len(name) <= MAX_NAME and name.isprintable():
        return ""
    return f"{quoted(name)} is not a valid tensor name: use 1 to {MAX_NAME} printable characters"


def _parse_each(value: object) -> Sources | None:
    return None if value is None else _parse_sources(value)


def _parse_output(value: object) -> Sources:
    if not isinstance(value, dict):
        return _parse_sources(value)
    if unknown := [key for key in value if key != "from"]:
        raise invalid(unknown_key(unknown[0], ["from"]))
    if "from" not in value:
        raise invalid("'from' is missing; write {from: step.output}")
    return _parse_sources(value["from"])


def _parse_condition(value: object) -> Condition:
    if not isinstance(value, str):
        raise invalid(f"must be a condition, got {show(value)}")
    try:
        return parse_condition(value)
    except ConditionWrong as error:
        raise invalid(str(error)) from None


def _parse_input(value: object) -> InputDeclaration:
    if value is None:
        return InputDeclaration()
    if not isinstance(value, dict):
        raise invalid(f"must be {{}}, or a datatype and a shape, got {show(value)}")
    known = ["datatype", "shape"]
    if unknown := [key for key in value if key not in known]:
        raise invalid(unknown_key(unknown[0], known))
    datatype, shape = value.get("datatype"), value.get("shape")
    if datatype is not None and (not isinstance(datatype, str) or datatype not in BY_NAME):
        raise invalid(f"datatype must be one such as FP32, INT64 or BYTES, got {show(datatype)}")
    if shape is None:
        return InputDeclaration(datatype)
    if not isinstance(shape, list) or any(map(_is_no_length, shape)):
        raise invalid(f"shape must be a list of lengths and names, such as [N, 64], got {shape}")
    return InputDeclaration(datatype, tuple(shape))


def _is_no_length(value: object) -> bool:
    if value is None or isinstance(value, str):
        return False
    return isinstance(value, bool) or not isinstance(value, int) or value < 0


def _parse_conditions(value: object) -> str:
    if value not in ("rows", "request"):
        raise invalid(f"must be rows or request, got {show(value)}")
    return str(value)


@dataclass(frozen=True, slots=True)
class InputDeclaration:
    """The declaration of a pipeline's input; omitted parts are taken from the steps.

    datatype: The Open Inference name; default None.
    shape: Fixed lengths, and names for variable ones; default None.
    """

    datatype: str | None = None
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a pipeline.

    model: The model that the step runs.
    inputs: The source of each input of the model: an input of the pipeline, or step.output. From a
        list, the first available tensor is used.
    version: The model's version; default None: the model's default version.
    when: Condition for running the step, such as max(small.probabilities) < 0.8; default None: no
        condition.
    each: Tensors whose items are the rows of the step, such as detect.boxes [N, boxes, 4]; default
        None: the rows of the request.
    """

    model: str
    inputs: Mapping[
        str, Annotated[Sources, PlainValidator(_parse_sources), WithJsonSchema(SOURCES_SCHEMA)]
    ]
    version: int | None = None
    when: (
        Annotated[Condition, PlainValidator(_parse_condition), WithJsonSchema({"type": "string"})]
        | None
    ) = None
    each: Annotated[
        Sources | None,
        PlainValidator(_parse_each),
        WithJsonSchema({"anyOf": [*SOURCES_SCHEMA["anyOf"], {"type": "null"}]}),
    ] = None


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class Pipeline:
    """`pipeline.yaml`.

    steps: The steps by name.
    outputs: The source of each output, {from: step.output}. From a list, the first available tensor
        is used.
    inputs: The inputs by name, each {} or with its datatype and shape; default None: every tensor
        name without a dot.
    conditions: The unit that conditions are decided for, rows or request; default None: rows if all
        models have them along axis 0.
    """

    steps: Mapping[str, Step]
    outputs: Mapping[
        str, Annotated[Sources, PlainValidator(_parse_output), WithJsonSchema(OUTPUT_SCHEMA)]
    ]
    inputs: (
        Mapping[
            str,
            Annotated[InputDeclaration, PlainValidator(_parse_input), WithJsonSchema(INPUT_SCHEMA)],
        ]
        | None
    ) = None
    conditions: (
        Annotated[
            str, PlainValidator(_parse_conditions), WithJsonSchema({"enum": ["rows", "request"]})
        ]
        | None
    ) = None


RANGES: Mapping[str, Range] = {"steps.*.version": Range(1, 10**18 - 1)}


def parse_pipeline(text: str, file: str = PIPELINE_FILE) -> Pipeline:
    """Parse a pipeline's text; `file` is its name in error messages. Raises ConfigProblems."""
    tree, _ = _split(text, file)
    pipeline = validate_tree(tree, Pipeline, file, RANGES)
    problems = [Problem(file, key, sentence) for key, sentence in _wrong(pipeline)]
    if problems:
        raise ConfigProblems(problems)
    return pipeline


def parse_processing(text: str, file: str = PIPELINE_FILE) -> ProcessingConfig:
    """Parse the processing keys of a pipeline's inputs and outputs. Raises ConfigProblems."""
    _, processing = _split(text, file)
    return validate_tree(processing, ProcessingConfig, file, PROCESSING_RANGES)


PROCESSING_KEYS = {
    side: frozenset(field.name for field in fields(kind))
    for side, kind in (("inputs", InputConfig), ("outputs", OutputConfig))
}


TOKENIZER = "tokenizer"
"""The key of an input whose text is tokenized into other inputs."""


def _split(text: str, file: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a file into the graph, and the processing of inputs and outputs."""
    tree = parse_yaml(text, file)
    if not isinstance(tree, dict):
        raise ConfigProblems([Problem(file, "", "must have steps and outputs")])
    graph, processing = dict(tree), {}
    for side, keys in PROCESSING_KEYS.items():
        named = tree.get(side)
        if not isinstance(named, dict):
            continue
        graph[side] = {
            name: {key: one for key, one in value.items() if key not in keys}
            if isinstance(value, dict)
            else value
            for name, value in named.items()
        }
        processing[side] = {
            name: {key: value[key] for key in value if key in keys}
            for name, value in named.items()
            if isinstance(value, dict) and not keys.isdisjoint(value)
        }
    for name, value in processing.get("inputs", {}).items():
        if TOKENIZER in value and not graph["inputs"][name]:
            del graph["inputs"][name]  # no step names this input
    if processing.get("inputs") and all(
        one is None or one == {} for one in graph["inputs"].values()
    ):
        del graph["inputs"]  # the steps determine the inputs
    return graph, processing


def _wrong(pipeline: Pipeline) -> Any:
    sizes = {"steps": (pipeline.steps, MAX_STEPS), "outputs": (pipeline.outputs, MAX_TENSORS)}
    if pipeline.inputs is not None:
        sizes["inputs"] = pipeline.inputs, MAX_TENSORS
    for key, (named, most) in sizes.items():
        if not named:
            yield key, "must have at least one"
        if len(named) > most:
            yield key, f"must be {most} at most, got {len(named)}"
        if key != "steps":
            yield from ((key, why) for name in named if (why := _why_no_name(name)))
    for name, step in pipeline.steps.items():
        if not STEP_NAME.fullmatch(name):
            yield (
                "steps",
                f"{quoted(name)} is not a valid step name: use letters, digits, '_' and '-'",
            )
        if not MODEL_NAME.fullmatch(step.model):
            yield f"steps.{name}.model", f"{quoted(step.model)} is no model: {MODEL_NAME_RULE}"
        if not step.inputs or len(step.inputs) > MAX_TENSORS:
            yield f"steps.{name}.inputs", f"must be from 1 to {MAX_TENSORS}, got {len(step.inputs)}"
