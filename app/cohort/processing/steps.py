"""The port of what makes inputs of a model of what callers send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cohort.batching import RunFeeds
from cohort.errors import LoadFailed
from cohort.repository import InputConfig
from cohort.tensors import Array, Arrays, TensorSpec

Check = Callable[[], None]
"""Called again and again in long work; what it raises ends that."""


class Step(Protocol):
    """Makes inputs of the model of one input that callers send. Used on any thread.

    spec: The input as callers send it, such as BYTES [N].
    fills: The names of the model's inputs that it makes.
    example: What a caller may send: one row.
    description: What it does, in one sentence.
    """

    spec: TensorSpec
    fills: Sequence[str]
    example: Array
    description: str

    def is_short(self, values: Array) -> bool:
        """Whether `prepare` takes less than a tenth of a millisecond."""

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """The bytes of what `prepare` gives at most, and of what it needs meanwhile.

        Takes little of both itself. Raises InvalidInput for what cannot be prepared.
        """

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Make the model's inputs, by name. Raises InvalidInput, which names the row."""


@runtime_checkable
class TriedStep(Protocol):
    """A `Step` that learns at a load from runs of the model."""

    def try_out(self, run: RunFeeds) -> None:
        """Run the model with what it makes, which are all inputs that the model must have.

        Raises LoadFailed, or what the run raises, where the model does not take that.
        """


@runtime_checkable
class ReversibleStep(Protocol):
    """A `Step` that can tell of which values the model's inputs may have been made."""

    def undo(self, arrays: Arrays) -> Array | None:
        """What a caller may have sent for the model's inputs; None: that is not known."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step is made from.

    name: The input's, as callers send it.
    config: What the operator says of it.
    inputs: The model's, by name.
    folder: That of the version: what files a step needs.
    tables: The entries of the tables that the model's inputs are places in, by the input's name.
    """

    name: str
    config: InputConfig
    inputs: Mapping[str, TensorSpec]
    folder: Path
    tables: Mapping[str, int] = field(default_factory=dict)

    def model_input(self) -> TensorSpec:
        """The model's input of that name. Raises LoadFailed where it has none."""
        spec = self.inputs.get(self.name)
        if spec is None:
            raise self.problem(f"the model has no such input; available: {', '.join(self.inputs)}")
        return spec

    @contextmanager
    def naming(self, key: str) -> Iterator[None]:
        """Say of a LoadFailed inside which key of the input it is about."""
        try:
            yield
        except LoadFailed as error:
            raise self.problem(f"{key}: {error}") from error

    def problem(self, sentence: str) -> LoadFailed:
        """What to raise where the config does not fit the model."""
        return LoadFailed(f"inputs.{self.name}: {sentence}")


def files_spec(name: str) -> TensorSpec:
    """An input of which callers send files, one for each row."""
    return TensorSpec(name, "BYTES", ("N",), files=True)
