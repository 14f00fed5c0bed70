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
from cohort.processing.detections import boxes_spec
from cohort.processing.outputs import Finish, finish_of, label_spec
from cohort.processing.steps import Step, StepContext
from cohort.repository import ProcessingConfig
from cohort.session import Signature
from cohort.tensors import Array, Arrays, TensorSpec

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


STEPS: Mapping[str, MakeStep] = {"image": _pictures, "audio": _sound, "tokenizer": _text}
"""What makes a step, by the key of `inputs.<name>` that asks for it."""

FINISHED_AT_ONCE = 1 << 14
"""Numbers of outputs that are worked on on the event loop: a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class Processing:
    """The steps of one version, and what becomes of its outputs. Implements `Around`.

    inputs, optional, outputs: The specs as callers know them.
    steps: Each makes inputs of the model of one of `inputs`; all others go to it as they are.
    finishing: What becomes of the outputs at these places.
    given: What a caller may send, as the config has it; default None: it has no such example.
    """

    inputs: Sequence[TensorSpec]
    optional: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    steps: Sequence[Step]
    finishing: Mapping[int, Finish]
    given: Arrays | None = None

    @property
    def prepares(self) -> bool:
        """Whether there is a step."""
        return bool(self.steps)

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
        return all(step.is_short(inputs[step.spec.name]) for step in self.steps)

    def prepared_bytes(self, inputs: Arrays, watch: Watch) -> int:
        """The bytes that `prepare` takes at most. Raises InvalidInput."""
        return sum(step.prepared_bytes(inputs[step.spec.name], watch) for step in self.steps)

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
        return prepared

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
        made = {step.spec.name: step.example for step in self.steps}
        return {
            spec.name: made[spec.name] if spec.name in made else _first_row(spec, inputs)
            for spec in self.inputs
        }

    def answer(self, inputs: Arrays | None, outputs: Outputs | None) -> Outputs | None:
        """See `Around`."""
        if inputs is None or outputs is None:
            return None
        if self.given is None and (
            self.steps or any(_has_more_rows(spec, inputs) for spec in self.inputs)
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
    steps: list[Step] = []
    filled: dict[str, str] = {}
    for name, one in config.inputs.items():
        kinds = [key for key in STEPS if getattr(one, key) is not None]
        context = StepContext(name, one, own, folder, signature.tables)
        if len(kinds) > 1:
            raise context.problem(f"it is either {kinds[0]} or {kinds[1]}")
        if not kinds:
            if one.max_length is not None or one.pairs:
                key = "max_length" if one.max_length is not None else "pairs"
                raise context.problem(f"{key} is for an input with a tokenizer")
            spec = context.model_input()
            own[name] = replace(spec, missing=_missing(context, spec))
            continue
        if one.missing is not None:
            raise context.problem(f"missing is not for an input with {kinds[0]}")
        step = STEPS[kinds[0]](context)
        for fills in step.fills:
            if fills in filled:
                raise context.problem(f"input {fills} comes from inputs.{filled[fills]}, too")
            filled[fills] = name
        steps.append(step)
    left = [own[spec.name] for spec in signature.inputs if spec.name not in filled]
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
    inputs = [*(step.spec for step in steps), *left]
    return Processing(inputs, optional, outputs, steps, finish)


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
