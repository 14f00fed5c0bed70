"""What becomes of the inputs and outputs of one version, as its config says."""

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
from cohort.processing.steps import ReversibleStep, Step, StepContext
from cohort.repository import InputConfig, ProcessingConfig
from cohort.session import Signature, declared_categories
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec

MakeStep = Callable[[StepContext], Step]


def _pictures(context: StepContext) -> Step:
    from cohort.processing.images import ImageStep  # noqa: PLC0415 - Pillow, for who takes pictures

    return ImageStep(context)


def _text(context: StepContext) -> Step:
    from cohort.processing.texts import TextStep  # noqa: PLC0415 - tokenizers, for models of text

    return TextStep(context)


def _sound(context: StepContext) -> Step:
    from cohort.processing.sound import SoundStep  # noqa: PLC0415 - libsndfile, for models that listen

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
"""What makes a step, by the key of `inputs.<name>` that asks for it."""

ONLY_WITH: Mapping[str, str] = {
    "max_length": "tokenizer",
    "pairs": "tokenizer",
    "unknown": "categories",
    "one_hot": "categories",
}
"""Keys of `inputs.<name>` that say more of another."""

JOINED_AT_ONCE = 1 << 14
"""Cells of columns that are put together on the event loop: a tenth of a millisecond."""

FINISHED_AT_ONCE = 1 << 14
"""Numbers of outputs that are worked on on the event loop: a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class Processing:
    """The steps of one version, and what becomes of its outputs. Implements `Around`.

    inputs, optional, outputs: The specs as callers know them.
    steps: Each makes inputs of the model of one of `inputs`; all others go to it as they are.
    finishing: What becomes of the outputs at these places.
    block: The model's only input, where callers send its columns; default None: they do not.
    given: What a caller may send, as the config has it; default None: it has no such example.
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
        """Whether there is a step, or columns to be put together."""
        return bool(self.steps) or self.block is not None

    @property
    def finishes(self) -> bool:
        """Whether an output becomes another."""
        return bool(self.finishing)

    @property
    def by_request(self) -> bool:
        """Never: each row becomes what it becomes alone."""
        return False

    def is_short(self, inputs: Arrays) -> bool:
        """Whether `prepare` takes less than a tenth of a millisecond."""
        if self.block is not None and _rows(inputs) * self.block.width > JOINED_AT_ONCE:
            return False
        return all(step.is_short(inputs[step.spec.name]) for step in self.steps)

    def prepared_bytes(self, inputs: Arrays, watch: Watch) -> int:
        """The bytes that `prepare` takes at most. Raises InvalidInput."""
        joined = 0 if self.block is None else self.block.size(_rows(inputs))
        return joined + sum(
            step.prepared_bytes(inputs[step.spec.name], watch) for step in self.steps
        )

    def prepare(self, inputs: Arrays, watch: Watch) -> Arrays:
        """Make the model's inputs of those that a caller sent. Raises InvalidInput."""
        prepared = dict(inputs)
        for step in self.steps:
            values = prepared.pop(step.spec.name)
            made = step.prepare(values, watch)
            rows = step.spec.rows_vary and len(values)
            if rows and any(len(array) != rows for array in made.values()):
                raise InvalidInput(f"input {quoted(step.spec.name)} did not give a row for each")
            prepared.update(made)
        return prepared if self.block is None else self.block.join(prepared)

    def finishes_at_once(self, outputs: Outputs) -> bool:
        """Whether `finish` is short."""
        return sum(outputs[place].size for place in self.finishing) <= FINISHED_AT_ONCE

    def finish(self, outputs: Outputs, watch: Watch) -> Outputs:
        """The outputs as callers get them."""
        del watch  # it takes no longer than the run
        changed = list(outputs)
        for place, finish in self.finishing.items():
            changed[place] = finish(changed[place])
        return changed

    def example(self, inputs: Arrays | None) -> Arrays | None:
        """What a caller may send, of an example of the model's inputs; None where there is none."""
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
        """What it does with inputs, by their names, in sentences."""
        return {step.spec.name: step.description for step in self.steps}

    def close(self) -> None:
        """Nothing is open."""


def _rows(inputs: Arrays) -> int:
    """The rows of columns, which all have as many."""
    return len(next(iter(inputs.values())))


def _example(step: Step, inputs: Arrays) -> Array:
    """What a caller may send for a step: by an example of the model's inputs, or any."""
    made = step.undo(inputs) if isinstance(step, ReversibleStep) else None
    return step.example if made is None else made[:1] if step.spec.rows_vary else made


def _has_more_rows(spec: TensorSpec, inputs: Arrays) -> bool:
    return inputs[spec.name].shape != _first_row(spec, inputs).shape


def _first_row(spec: TensorSpec, inputs: Arrays) -> Array:
    array = inputs[spec.name]
    return array[:1] if spec.rows_vary and array.ndim else array


class Asked(NamedTuple):
    """What is asked for inputs and outputs, and the file in which that stands."""

    config: ProcessingConfig
    file: str


def make_processing(
    asked: Asked, signature: Signature, folder: Path, properties: Mapping[str, str]
) -> Processing:
    """Make what is done with inputs and outputs.

    asked: What is asked.
    signature: What the model takes and gives.
    folder: That of the version, with the files that the config names.
    properties: The metadata of the model's file.

    Raises LoadFailed for what does not fit the model, which says where that stands.
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
        context = StepContext(name, one, own, folder, signature.tables)
        kind = _kind(context)
        if not kind:
            spec = context.model_input()
            own[name] = replace(spec, missing=_missing(context, spec))
            continue
        step = STEPS[kind](context)
        for fills in step.fills:
            if fills in filled:
                raise context.problem(f"input {fills} comes from inputs.{filled[fills]}, too")
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
    """The key that asks for a step; "" where there is none. Raises LoadFailed."""
    config = context.config
    kinds = [key for key in STEPS if getattr(config, key) is not None]
    if len(kinds) > 1:
        raise context.problem(f"it is either {kinds[0]} or {kinds[1]}")
    kind = kinds[0] if kinds else ""
    for key, other in ONLY_WITH.items():
        if getattr(config, key) not in {None, False} and kind != other:
            article = "a tokenizer" if other == "tokenizer" else other
            raise context.problem(f"{key} is for an input with {article}")
    if config.missing is not None and kind in {"image", "audio", "tokenizer"}:
        raise context.problem(f"missing is not for an input with {kind}")
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
    """The inputs, with those columns of the only one of which something is said, if any is."""
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
    """What is said of inputs, by the config and by the metadata of the model's file."""
    asked = dict(inputs)
    for name, categories in declared_categories(properties).items():
        spec, said = own.get(name), asked.get(name, InputConfig())
        datatype = None if spec is None else BY_NAME.get(spec.datatype)
        is_column = spec is not None and (spec.shape or ())[1:] in {(), (1,)}
        said_more = any(getattr(said, key) is not None for key in STEPS)
        if is_column and datatype and datatype.kind in {"int", "float"} and not said_more:
            asked[name] = replace(said, categories=categories)
    return asked


def _in_order(
    steps: Sequence[Step], left: Sequence[TensorSpec], names: Sequence[str]
) -> list[TensorSpec]:
    """The inputs of callers in the order of the model's, as a table without names has them."""
    places = {name: place for place, name in enumerate(names)}
    placed = [(places[spec.name], spec) for spec in left]
    placed += [(min(places.get(name, 0) for name in step.fills), step.spec) for step in steps]
    return [spec for _, spec in sorted(placed, key=lambda one: one[0])]


def _missing(context: StepContext, spec: TensorSpec) -> float | int | str | None:
    """The value for a missing one, as the input's datatype has it. Raises LoadFailed."""
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
        raise context.problem(f"missing is {value:g}, and the model takes {spec.datatype}")
    return int(value) if whole else value
