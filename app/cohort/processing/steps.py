"""The port for steps, which convert inputs from callers to inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cohort.batching import RunFeeds
from cohort.errors import LoadFailed, did_you_mean
from cohort.repository import InputConfig
from cohort.tensors import Array, Arrays, TensorSpec

Check = Callable[[], None]
"""A function that long work calls repeatedly; an exception from it ends the work."""


class Step(Protocol):
    """A conversion of one input from callers to inputs of the model. Used on any thread.

    spec: The input as callers send it, such as BYTES [N].
    fills: The names of the model's inputs that it makes.
    example: A valid value of one row.
    description: The conversion in one sentence.
    """

    spec: TensorSpec
    fills: Sequence[str]
    example: Array
    description: str

    def is_short(self, values: Array) -> bool:
        """Return True if `prepare` takes less than 0.1 ms."""

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """Return the maximum bytes of the result of `prepare` and of its temporary memory.

        This method needs little time and memory. Raises InvalidInput if the values are invalid.
        """

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Return the model's inputs by name. Raises InvalidInput, which names the row."""


@runtime_checkable
class TriedStep(Protocol):
    """A `Step` that runs the model during a load to adapt to it."""

    def try_out(self, run: RunFeeds) -> None:
        """Run the model with inputs made by this step, which fills all required inputs.

        Raises LoadFailed, or the error of the run, if the model rejects them.
        """


@runtime_checkable
class ReversibleStep(Protocol):
    """A `Step` that can convert inputs of the model back to values from callers."""

    def undo(self, arrays: Arrays) -> Array | None:
        """Return values that `prepare` converts to these inputs; None if they are unknown."""


@runtime_checkable
class CountingStep(Protocol):
    """A `Step` that makes ids of text."""

    def count(self, values: Array, check: Check) -> int:
        """Return the number of ids, without padding. Raises InvalidInput."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The arguments that make a step.

    name: The name of the input that callers send.
    config: The operator's config of this input.
    inputs: The model's inputs by name.
    folder: The folder of the version, with the files that a step needs.
    tables: The number of entries of each table that an input of the model indexes, by input name.
    block: The name of the model's input whose columns are `inputs`; default: none.
    """

    name: str
    config: InputConfig
    inputs: Mapping[str, TensorSpec]
    folder: Path
    tables: Mapping[str, int] = field(default_factory=dict)
    block: str | None = None

    def model_input(self) -> TensorSpec:
        """Return the model's input of this name. Raises LoadFailed if it does not exist."""
        spec = self.inputs.get(self.name)
        if spec is None:
            names = [*self.inputs, *filter(None, [self.block])]
            raise self.problem(f"the model has no such input{did_you_mean(self.name, names)}")
        return spec

    @contextmanager
    def naming(self, key: str) -> Iterator[None]:
        """Add the name of the input and the key to a LoadFailed raised inside."""
        try:
            yield
        except LoadFailed as error:
            raise self.problem(f"{key}: {error}") from error

    def problem(self, sentence: str) -> LoadFailed:
        """Return the error to raise if the config does not fit the model."""
        return LoadFailed(f"inputs.{self.name}: {sentence}")


def files_spec(name: str) -> TensorSpec:
    """Return the spec of an input for which callers send one file per row."""
    return TensorSpec(name, "BYTES", ("N",), files=True)
