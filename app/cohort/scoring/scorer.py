"""Runs of a model on rows, in which a bad row fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohort.batching import Outputs
from cohort.codec.labels import Labeller
from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    Overloaded,
    quoted,
)
from cohort.process.runtime import NO_PARAMETERS, Runtime
from cohort.registry import BatchEngine
from cohort.scoring.rows import Rows
from cohort.serving import Lease
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec

MAX_ROWS = 1024
"""Rows of a request."""

MAX_BYTES = 4 << 20
"""Bytes of a request's arrays, as far as its shapes are fixed."""

RUN_SECONDS = 0.1
"""Duration of a request's run, as measured when the model was loaded."""

ROW_FAILURES = (InvalidInput, InferenceFailed, DeadlineExceeded)
"""Errors that may be caused by one row of several."""

AGAIN_SECONDS = 0.05
"""Delay before a request is repeated that the runtime had no room for."""


class OutputNotByRow(CohortError):
    """An output does not have one value for each row."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A version, and what scoring reads and writes.

    model, version: Its name and its number.
    inputs: Its inputs.
    outputs: The chosen outputs, each followed by its labels if it has labels.
    rows: The rows of a request.
    fixed: True if a request must have exactly this number of rows.
    digest: A text that changes with the version's files.
    """

    model: str
    version: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    rows: int
    fixed: bool
    digest: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The results of some rows.

    columns: The values of each output; rows that failed have no value in them.
    errors: The error of each row; "": its values are the next ones in `columns`.
    """

    columns: Sequence[Array]
    errors: Sequence[str]

    @property
    def failed(self) -> int:
        """The number of rows that failed."""
        return sum(map(bool, self.errors))

    def spread(self, column: Iterable[Any]) -> Sequence[Any]:
        """Return a value of a column for each row, None for those that failed."""
        values = iter(column)
        return [None if error else next(values) for error in self.errors]


class Scorer:
    """Runs one version of a model on rows.

    runtime: Runs the model.
    lease: Names the version; it may be closed afterwards.
    outputs: The names of the outputs; None: all.
    """

    def __init__(self, runtime: Runtime, lease: Lease, outputs: Sequence[str] | None) -> None:
        self._runtime = runtime
        served, positions = lease.served, lease.select(outputs)
        self._names = [served.outputs[at].name for at in positions]
        self._labellers = [served.labellers[at] for at in positions]
        fixed = fixed_rows(served.inputs)
        self.signature = Signature(
            lease.model,
            lease.version,
            served.inputs,
            self._specs([served.outputs[at] for at in positions]),
            fixed or rows_of_request(served.engine, served.inputs),
            fixed > 0,
            repr(sorted(served.engine.describe().files.items())),
        )

    def _specs(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        specs = []
        for spec, labeller in zip(outputs, self._labellers, strict=True):
            specs.append(spec)
            if labeller is not None:
                specs.append(labeller.tensor)
        return specs

    async def score(self, rows: Rows) -> Scored:
        """Run the model on rows. If a run fails, its rows run again in halves.

        Raises NotReady if the model stopped serving, and OutputNotByRow.
        """
        pieces = await self._pieces(rows)
        errors = [error for _, some in pieces for error in some]
        good = [arrays for arrays, _ in pieces if arrays is not None]
        if not good:
            empty: Array = np.empty(0)
            return Scored([empty] * len(self.signature.outputs), errors)
        return Scored([_joined(parts) for parts in zip(*good, strict=True)], errors)

    async def _pieces(self, rows: Rows) -> list[tuple[Sequence[Array] | None, Sequence[str]]]:
        try:
            return [(await self._run(rows), [""] * len(rows))]
        except ROW_FAILURES as error:
            if len(rows) == 1:
                return [(None, [str(error)])]
        half = len(rows) // 2
        before = await self._pieces(rows.cut(0, half))
        return before + await self._pieces(rows.cut(half, len(rows)))

    async def _run(self, rows: Rows) -> Sequence[Array]:
        one = self.signature
        while True:
            try:
                call = RowsCall(rows, one, self._names, self._labellers)
                return await self._runtime.ask(call)
            except Overloaded:
                await asyncio.sleep(AGAIN_SECONDS)


async def open_scorer(
    runtime: Runtime, model: str, version: str | None, outputs: Sequence[str] | None
) -> Scorer:
    """Return a scorer with a version of a model; None: the version that answers requests now.

    Raises as `Runtime.infer` if the model cannot answer.
    """
    with await runtime.lease(model, version) as lease:
        return Scorer(runtime, lease, outputs)


class RowsCall:
    """A request of rows of a file; its answer has an array for each output and its labels.

    If the model has a fixed number of rows, copies of the last row fill the request.
    """

    label: str | None = None
    beside = 0
    timeout: float | None = None
    parameters: Mapping[str, object] = NO_PARAMETERS

    def __init__(
        self,
        rows: Rows,
        signature: Signature,
        outputs: Sequence[str],
        labellers: Sequence[Labeller | None],
    ) -> None:
        self.model: str | None = signature.model
        self.version: str | None = signature.version
        self._run = rows.filled(signature.rows) if signature.fixed else rows
        self._rows = rows
        self._outputs = outputs
        self._labellers = labellers

    def decode_work(self, lease: Lease) -> int:
        """Return 0: nothing else runs on this event loop."""
        return 0

    def decode(self, lease: Lease) -> Arrays:
        """Make the inputs. Raises InvalidInput."""
        return self._run.decode(lease.inputs)

    def is_large(self, outputs: Outputs) -> bool:
        """Return False: nothing is encoded."""
        return False

    def encode(self, lease: Lease, outputs: Outputs) -> Sequence[Array]:
        """Return the outputs and labels; a view of a larger run is copied."""
        count, ran, made = len(self._rows), len(self._run), []
        positions = lease.select(self._outputs)
        for at, labeller in zip(positions, self._labellers, strict=True):
            array = outputs[at]
            if not array.ndim or len(array) != ran:
                name = quoted(lease.outputs[at].name)
                raise OutputNotByRow(
                    f"output {name} has shape {list(array.shape)} for {ran} rows, not a value "
                    "for each row; choose others with --outputs"
                )
            if count < ran:
                array = array[:count]
            single = is_single(lease.outputs[at]) and array.size == count
            kept = array.reshape(count) if single else array
            made.append(kept.copy() if kept.base is not None else kept)
            if labeller is not None:
                made.append(labeller.names(array, 0))
        return made


def is_single(spec: TensorSpec) -> bool:
    """Return True if an output has one value a row: [N] or [N, 1]."""
    shape = spec.shape
    return shape is None or len(shape) < 2 or (len(shape) == 2 and shape[1] == 1)


def fixed_rows(inputs: Iterable[TensorSpec]) -> int:
    """Return the number of rows that all inputs must have; 0 if it may vary.

    1 counts as 0: such models need no more than a row a request.
    """
    lengths = {spec.shape[0] if spec.shape else None for spec in inputs}
    length = lengths.pop() if len(lengths) == 1 else None
    return length if isinstance(length, int) and length > 1 else 0


def rows_of_request(engine: BatchEngine, inputs: Sequence[TensorSpec]) -> int:
    """Return how many rows a request should have: 1 if rows of a request may influence each other.

    Otherwise a run of them should take RUN_SECONDS, but not less than the model's largest batch.
    """
    described = engine.describe()
    batching = described.batching
    vary = all(spec.rows_vary for spec in inputs)
    if batching is None or described.by_request or described.by_sequence or not vary:
        return 1
    policy = batching.policy
    proven = batching.rows.independent and not batching.rows.requests
    if not (policy.batches or proven):
        return 1
    measured = batching.profile.profile.seconds
    per_row = min((seconds / rows for rows, seconds in measured.items()), default=RUN_SECONDS)
    fast = int(RUN_SECONDS / max(per_row, 1e-9))
    wide = MAX_BYTES // max(map(_row_bytes, inputs), default=1)
    return max(min(MAX_ROWS, wide, max(fast, policy.max_batch_size)), 1)


def _row_bytes(spec: TensorSpec) -> int:
    size = BY_NAME[spec.datatype].size(1) if spec.transportable else 1
    for length in (spec.shape or ())[1:]:
        size *= length if isinstance(length, int) else 1
    return max(size, 1)


def _joined(parts: Sequence[Array]) -> Array:
    """Join the rows of several runs; rows of different lengths become an array of arrays."""
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    rows = [row for part in parts for row in part]
    made = np.empty(len(rows), object)
    for at, row in enumerate(rows):
        made[at] = row
    return made
