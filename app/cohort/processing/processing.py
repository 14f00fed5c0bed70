"""The processing of the inputs and outputs of one version, made from its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from cohort.batching import Outputs
from cohort.errors import CohortError, InvalidInput, LoadFailed, did_you_mean, quoted
from cohort.processing.around import Watch
from cohort.processing.columns import ColumnBlock, find_block, with_columns
from cohort.processing.detections import boxes_spec
from cohort.processing.outputs import Finish, finish_of, label_spec
from cohort.processing.steps import Check, CountingStep, ReversibleStep, Step, StepContext
from cohort.repository import InputConfig, ProcessingConfig
from cohort.session import Signature, declared_categories
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec

MakeStep = Callable[[StepContext], Step]


def _pictures(context: StepContext) -> Step:
    from cohort.processing.images import ImageStep  # noqa: PLC0415 - Pillow, for pictures only

    return ImageStep(context)


def _text(context: StepContext) -> Step:
    from cohort.processing.texts import TextStep  # noqa: PLC0415 - tokenizers, for text only

    return TextStep(context)


def _sound(context: StepContext) -> Step:
    from cohort.processing.sound import SoundStep  # noqa: PLC0415 - libsndfile, for sound only

    return SoundStep(context)


def _categories(context: StepContext) -> Step:
    from cohort.processing.categories import CategoryStep  # noqa: PLC0415 - for models of tables

    return CategoryStep(context)


def _standardised(context: StepContext) -> Step:
    from cohort.processing.standardising import StandardiseStep  # noqa: PLC0415 - for tables

    return StandardiseStep(context)


def _dates(context: StepContext) -> Step:
    from cohort.processing.dates import DateStep  # noqa: PLC0415 - for models of tables

    return DateStep(context)


STEPS: Mapping[str, MakeStep] = {
    "image": _pictures,
    "audio": _sound,
    "tokenizer": _text,
    "categories": _categories,
    "standardise": _standardised,
    "date": _dates,
}
"""Functions that make a step, by the key of `inputs.<name>` that requests it."""

ONLY_WITH: Mapping[str, str] = {
    "max_length": "tokenizer",
    "pairs": "tokenizer",
    "unknown": "categories",
    "one_hot": "categories",
}
"""Keys of `inputs.<name>` that are valid only with another key."""

JOINED_AT_ONCE = 1 << 14
"""Maximum cells of columns to join on the event loop, which takes 0.1 ms."""

FINISHED_AT_ONCE = 1 << 14
"""Maximum numbers of outputs to finish on the event loop, which takes 0.1 ms."""


@dataclass(frozen=True, slots=True)
class Processing:
    """The steps of one version and the functions for its outputs. Implements `Around`.

    inputs, optional, outputs: The specs for callers.
    steps: Each converts one of `inputs`; the model gets all other inputs unchanged.
    finishing: Functions that change an output, by the position of the output.
    block: The model's only input, if callers send its columns; default None: they do not.
    given: The example of the config, if it is in the form that callers send; default None.
    """

    inputs: Sequence[TensorSpec]
    optional: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    steps: Sequence[Step]
    finishing: Mapping[int, Finish]
    block: ColumnBlock | None = None
    given: Arrays | None = None

    @property
    def prepares(self) -> bool:
        """True if there is a step, or if columns are joined."""
        return bool(self.steps) or self.block is not None

    @property
    def finishes(self) -> bool:
        """True if an output is changed."""
        return bool(self.finishing)

    @property
    def by_request(self) -> bool:
        """False: the result of a row never depends on other rows."""
        return False

    def is_short(self, inputs: Arrays) -> bool:
        """Return True if `prepare` takes less than 0.1 ms."""
        if self.block is not None and _rows(inputs) * self.block.width > JOINED_AT_ONCE:
            return False
        return all(step.is_short(inputs[step.spec.name]) for step in self.steps)

    def prepared_bytes(self, inputs: Arrays, watch: Watch) -> int:
        """Return the maximum bytes that `prepare` needs. Raises InvalidInput."""
        joined = 0 if self.block is None else self.block.size(_rows(inputs))
        return joined + sum(
            step.prepared_bytes(inputs[step.spec.name], watch) for step in self.steps
        )

    def prepare(self, inputs: Arrays, watch: Watch) -> Arrays:
        """Convert the inputs from a caller to inputs of the model. Raises InvalidInput."""
        prepared = dict(inputs)
        for step in self.steps:
            values = prepared.pop(step.spec.name)
            made = step.prepare(values, watch)
            rows = step.spec.rows_vary and len(values)
            if rows and any(len(array) != rows for array in made.values()):
                raise InvalidInput(f"input {quoted(step.spec.name)} did not give a row for each")
            prepared.update(made)
        return prepared if self.block is None else self.block.join(prepared)

    @property
    def count_tokens(self) -> Callable[[Arrays, Check], int] | None:
        """See `Around`."""
        if len(self.inputs) != 1 or len(self.steps) != 1 or self.optional:
            return None
        (step,) = self.steps
        if not isinstance(step, CountingStep) or len(step.spec.shape or ()) != 1:  # not for pairs
            return None
        return lambda inputs, check: step.count(inputs[step.spec.name], check)

    def finishes_at_once(self, outputs: Outputs) -> bool:
        """Return True if `finish` takes less than 0.1 ms."""
        return sum(outputs[place].size for place in self.finishing) <= FINISHED_AT_ONCE

    def finish(self, outputs: Outputs, watch: Watch) -> Outputs:
        """Return the outputs for callers."""
        del watch  # it is not slower than the run
        changed = list(outputs)
        for place, finish in self.finishing.items():
            changed[place] = finish(changed[place])
        return changed

    def example(self, inputs: Arrays | None) -> Arrays | None:
        """Return inputs that a caller may send, made from an example of the model's inputs.

        Returns None if there is no example.
        """
        if self.given is not None or inputs is None:
            return self.given
        if self.block is not None:
            inputs = self.block.split(inputs)
        made = {step.spec.name: _example(step, inputs) for step in self.steps}
        return {
            spec.name: made[spec.name] if spec.name in made else _first_row(spec, inputs)
            for spec in self.inputs
        }

    def answer(self, inputs: Arrays | None, outputs: Outputs | None) -> Outputs | None:
        """See `Around`."""
        if inputs is None or outputs is None:
            return None
        if self.given is None and (
            self.prepares or any(_has_more_rows(spec, inputs) for spec in self.inputs)
        ):
            return None
        try:
            return self.finish(outputs, Watch(inf, None))
        except CohortError:
            return None

    @property
    def description(self) -> Mapping[str, str]:
        """The conversion of each input in one sentence, by input name."""
        return {step.spec.name: step.description for step in self.steps}

    def close(self) -> None:
        """Do nothing: no resource is open."""


def _rows(inputs: Arrays) -> int:
    """Return the number of rows, which is the same for all columns."""
    return len(next(iter(inputs.values())))


def _example(step: Step, inputs: Arrays) -> Array:
    """Return an example for a step, from the model's inputs if the step can convert them back."""
    made = step.undo(inputs) if isinstance(step, ReversibleStep) else None
    return step.example if made is None else made[:1] if step.spec.rows_vary else made


def _has_more_rows(spec: TensorSpec, inputs: Arrays) -> bool:
    return inputs[spec.name].shape != _first_row(spec, inputs).shape


def _first_row(spec: TensorSpec, inputs: Arrays) -> Array:
    array = inputs[spec.name]
    return array[:1] if spec.rows_vary and array.ndim else array


class Asked(NamedTuple):
    """The requested processing of inputs and outputs, and the file that contains it."""

    config: ProcessingConfig
    file: str


def make_processing(
    asked: Asked, signature: Signature, folder: Path, properties: Mapping[str, str]
) -> Processing:
    """Make the processing of inputs and outputs.

    asked: The requested processing.
    signature: The inputs and outputs of the model.
    folder: The folder of the version, with the files that the config names.
    properties: The metadata of the model's file.

    Raises LoadFailed, which names the file and key, if the config does not fit the model.
    """
    try:
        return _make(asked.config, signature, folder, properties)
    except LoadFailed as error:
        raise LoadFailed(f"{asked.file}: {error}") from error


def _make(
    config: ProcessingConfig, signature: Signature, folder: Path, properties: Mapping[str, str]
) -> Processing:
    own = {spec.name: spec for spec in (*signature.inputs, *signature.optional)}
    own, block = _with_columns(config, own, signature, folder, properties)
    asked = _with_declared(config.inputs, own, properties)
    steps: list[Step] = []
    filled: dict[str, str] = {}
    for name, one in asked.items():
        if block is not None and name == block.spec.name:
            continue
        joined = block.spec.name if block else None
        context = StepContext(name, one, own, folder, signature.tables, joined)
        kind = _kind(context)
        if not kind:
            spec = context.model_input()
            own[name] = replace(spec, missing=_missing(context, spec))
            continue
        step = STEPS[kind](context)
        for fills in step.fills:
            if fills in filled:
                raise context.problem(f"inputs.{filled[fills]} already makes the input {fills}")
            filled[fills] = name
        steps.append(step)
    required = signature.inputs if block is None else block.specs()
    left = [own[spec.name] for spec in required if spec.name not in filled]
    optional = [own[spec.name] for spec in signature.optional if spec.name not in filled]
    outputs = list(signature.outputs)
    places = {spec.name: place for place, spec in enumerate(outputs)}
    finish: dict[int, Finish] = {}
    for name, wanted in config.outputs.items():
        if name not in places:
            raise LoadFailed(
                f"outputs.{name}: the model has no such output{did_you_mean(name, places)}"
            )
        place = places[name]
        outputs[place] = label_spec(outputs[place], wanted, folder, properties)
        if (function := finish_of(outputs[place], wanted)) is not None:
            finish[place] = function
    for name, wanted in config.outputs.items():
        place = places[name]
        outputs[place] = boxes_spec(outputs[place], wanted, outputs, folder, properties)
    inputs = _in_order(steps, left, [spec.name for spec in required])
    return Processing(inputs, optional, outputs, steps, finish, block)


def _kind(context: StepContext) -> str:
    """Return the key that requests a step, or "". Raises LoadFailed."""
    config = context.config
    kinds = [key for key in STEPS if getattr(config, key) is not None]
    if len(kinds) > 1:
        raise context.problem(f"use either {kinds[0]} or {kinds[1]}, not both")
    kind = kinds[0] if kinds else ""
    for key, other in ONLY_WITH.items():
        if getattr(config, key) not in {None, False} and kind != other:
            article = "a tokenizer" if other == "tokenizer" else other
            raise context.problem(f"{key} needs {article}")
    if config.missing is not None and kind in {"image", "audio", "tokenizer"}:
        raise context.problem(f"missing cannot be combined with {kind}")
    return kind


Own = dict[str, TensorSpec]
"""The inputs that a model takes, by name."""


def _with_columns(
    config: ProcessingConfig,
    own: Own,
    signature: Signature,
    folder: Path,
    properties: Mapping[str, str],
) -> tuple[Own, ColumnBlock | None]:
    """Return the inputs and the `ColumnBlock`; its columns replace the only required input.

    The block is None if callers do not send the columns as inputs.
    """
    for name, one in config.inputs.items():
        if one.columns is not None:
            context = StepContext(name, one, own, folder)
            own = {**own, name: with_columns(context, context.model_input())}
    required = [own[spec.name] for spec in signature.inputs]
    block = find_block(required, [*config.inputs], [*declared_categories(properties)])
    if block is None:
        return own, None
    whole = config.inputs.get(block.spec.name)
    if whole is not None:
        context = StepContext(block.spec.name, whole, own, folder)
        if kind := _kind(context):
            raise context.problem(f"{kind} is for an input whose columns are not inputs themselves")
        block = replace(block, spec=replace(block.spec, missing=_missing(context, block.spec)))
    columns = {spec.name: spec for spec in block.specs()}
    return {**columns, **{spec.name: own[spec.name] for spec in signature.optional}}, block


def _with_declared(
    inputs: Mapping[str, InputConfig], own: Own, properties: Mapping[str, str]
) -> Mapping[str, InputConfig]:
    """Return the config of the inputs, with the categories that the model's metadata declares."""
    asked = dict(inputs)
    for name, categories in declared_categories(properties).items():
        spec, given = own.get(name), asked.get(name, InputConfig())
        datatype = None if spec is None else BY_NAME.get(spec.datatype)
        is_column = spec is not None and (spec.shape or ())[1:] in {(), (1,)}
        has_step = any(getattr(given, key) is not None for key in STEPS)
        if is_column and datatype and datatype.kind in {"int", "float"} and not has_step:
            asked[name] = replace(given, categories=categories)
    return asked


def _in_order(
    steps: Sequence[Step], left: Sequence[TensorSpec], names: Sequence[str]
) -> list[TensorSpec]:
    """Return the inputs of callers in the model's order, which a table without names uses."""
    places = {name: place for place, name in enumerate(names)}
    placed = [(places[spec.name], spec) for spec in left]
    placed += [(min(places.get(name, 0) for name in step.fills), step.spec) for step in steps]
    return [spec for _, spec in sorted(placed, key=lambda one: one[0])]


def _missing(context: StepContext, spec: TensorSpec) -> float | int | str | None:
    """Return the value that replaces a missing one, in the input's datatype. Raises LoadFailed."""
    value = context.config.missing
    if value is None:
        return spec.missing
    if spec.datatype == "BYTES":
        return value if isinstance(value, str) else f"{value:g}"
    if value == "nan":
        value = float("nan")
    if isinstance(value, str):
        raise context.problem(f"missing must be a number or nan, got the string {quoted(value)}")
    whole = spec.dtype.kind in "iu"
    if whole and not float(value).is_integer():
        raise context.problem(f"missing is {value:g}, but the model expects {spec.datatype}")
    return int(value) if whole else value
