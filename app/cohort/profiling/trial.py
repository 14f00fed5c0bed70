"""Synthetic inputs: made from a model's description, to run it before the first request.

A `Trial` is found once per load by running the model. All later checks and measurements use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from time import perf_counter

import numpy as np

from cohort.batching import RunFeeds
from cohort.errors import CohortError, InvalidInput, quoted
from cohort.profiling.varied import varied_array
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec, content_of

RowAxes = Mapping[str, int | None]
"""The axis of rows of each input; None if all rows share the input."""

LENGTHS = (16, 1, 8, 32, 64, 128, 224, 256)
"""Sizes tried, in this order, for dimensions (other than rows) that the model leaves open."""

MAX_ROW_ELEMENTS = 1 << 25
"""Size limit of a row: eight open dimensions of 16 would exhaust the memory."""

MAX_NAMED_INPUTS = 8
"""Maximum number of inputs that a message names."""

_ODD = re.compile(r"[^\w.-]|^[^A-Za-z_]")
"""Pattern of names that YAML may misread without quotes."""

PLAIN_REQUESTS = 2
"""Number of requests, in addition to varied ones, that the model should accept."""

SCALES = (1.0, 0.03, 30.0, 0.3, 1.0, 10.0, 0.1, 3.0)
"""Scale of the values of row i, repeated: most neighbours differ by an order of magnitude."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Inputs that a model accepted in a run.

    inputs: The specs.
    length: The size of open dimensions other than rows.
    problem: Why there are no such inputs; then neither `feeds` nor `requests` must be called.
    seconds: The duration of a run of one row, from the first run or the warm-up.
    axes: The axis of rows of each input: see `synthetic_inputs`.
    tables: The number of entries of the table that an input's whole numbers index, by input.
    examples: Requests that the model should accept, with any number of rows.
    like: A request that gives the sizes in place of `length`, and the inputs without rows; default:
        none.
    repeated: True if the inputs are the rows of `like`, repeated, because the model accepts no
        others; default False.
    """

    inputs: Sequence[TensorSpec] = ()
    length: int = 0
    problem: str = ""
    seconds: float = 0.0
    axes: RowAxes | None = None
    tables: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Arrays] = ()
    like: Arrays | None = None
    repeated: bool = False

    def feeds(self, rows: int) -> Arrays:
        """Return inputs of `rows` rows, the same every time."""
        if self.repeated and self.like is not None:
            return _repeated(self.like, self.inputs, rows, self.axes)
        return synthetic_inputs(self.inputs, rows, self.length, self.axes, self.like)

    def describe_like(self) -> str:
        """Describe the parts of `like` that affect a run's time: sizes, and inputs without rows.

        Returns "" if `like` is None.
        """
        words = []
        if self.like is None:
            return ""
        for spec in self.inputs:
            array, axis = self.like[spec.name], row_axis(spec, self.axes)
            sizes = [size for at, size in enumerate(array.shape) if at != axis]
            shared = "" if axis is not None else f" {sha256(content_of(array)).hexdigest()}"
            words.append(f"{quoted(spec.name)} {sizes}{shared}")
        return ", ".join(words)

    def requests(self, count: int) -> list[Arrays]:
        """Return two or more requests of one row each, and the examples; the same every time.

        The last two are rows of `feeds`. The others have values as varied as real ones, and the
        model may refuse them. Each example is followed by such a request of its shapes.
        """
        plain = [self._row(self.feeds(PLAIN_REQUESTS), row) for row in range(PLAIN_REQUESTS)]
        varied = [
            {spec.name: self._value(spec, plain[0][spec.name], number) for spec in self.inputs}
            for number in range(count - PLAIN_REQUESTS)
        ]
        examples = [
            request
            for number, example in enumerate(self.examples)
            for request in (example, self._like(example, number))
        ]
        return examples + varied + plain

    def _like(self, example: Arrays, number: int) -> Arrays:
        return {spec.name: self._value(spec, example[spec.name], number) for spec in self.inputs}

    def _row(self, feeds: Arrays, row: int) -> Arrays:
        axes = {spec.name: row_axis(spec, self.axes) for spec in self.inputs}
        return {
            name: array if (axis := axes[name]) is None else array.take([row], axis)
            for name, array in feeds.items()
        }

    def _value(self, spec: TensorSpec, plain: Array, number: int) -> Array:
        if row_axis(spec, self.axes) is None:
            return plain
        return varied_array(spec, plain.shape, number, self.tables)


NO_TABLES: Mapping[str, int] = {}


def find_trial(
    run: RunFeeds,
    inputs: Sequence[TensorSpec],
    axes: RowAxes | None = None,
    tables: Mapping[str, int] = NO_TABLES,
    examples: Sequence[Arrays] = (),
) -> Trial:
    """Find inputs that the model accepts, in one run for each length tried.

    `axes`, `tables` and `examples` are those of the `Trial`. Inputs like the first example are
    tried first, and its own rows next. If the model refuses all of them, the `problem` is the
    reason for which it refused the first.
    """
    problem = ""
    is_open = any(has_open_dimensions(spec, axes) for spec in inputs)
    known = Trial(inputs, LENGTHS[0], axes=axes, tables=tables, examples=examples)
    trials = [
        replace(known, like=example, repeated=repeated)
        for example in examples[:1]
        for repeated in (False, True)
    ]
    trials += [replace(known, length=one) for one in (LENGTHS if is_open else LENGTHS[:1])]
    for trial in trials:
        try:
            if trial.like is None and (reason := why_too_large(inputs, trial.length, axes)):
                raise InvalidInput(reason)
            feeds = trial.feeds(1)
            started = perf_counter()
            run(feeds)
        except CohortError as error:
            problem = problem or str(error)
        else:
            return replace(trial, seconds=perf_counter() - started)
    return Trial(problem=problem, examples=examples)


def has_open_dimensions(spec: TensorSpec, axes: RowAxes | None = None) -> bool:
    """Return True if the model leaves open a dimension other than the rows."""
    rows = row_axis(spec, axes)
    sizes = enumerate(spec.shape or ())
    return any(not isinstance(size, int) for axis, size in sizes if axis != rows)


def why_too_large(inputs: Sequence[TensorSpec], length: int, axes: RowAxes | None = None) -> str:
    """Name the input whose row is too large with open dimensions of this length; "" if none is."""
    for spec in inputs:
        rows = row_axis(spec, axes)
        elements = prod(
            size if isinstance(size, int) else length
            for axis, size in enumerate(spec.shape or ())
            if axis != rows
        )
        if elements > MAX_ROW_ELEMENTS:
            return f"one row of input {quoted(spec.name)} would take {elements} elements"
    return ""


def example_key(inputs: Sequence[TensorSpec]) -> str:
    """Return an `example` key for a config, with the shapes of inputs and `?` for open sizes."""
    words = []
    for spec in inputs:
        sizes = [str(size) if isinstance(size, int) else "?" for size in spec.shape or ()]
        shape = f"[{', '.join(sizes)}]"
        shape = f"{{shape: {shape}}}" if len(sizes) == 1 or spec.shape is None else shape
        words.append(f"{quoted(spec.name) if _ODD.search(spec.name) else spec.name}: {shape}")
    more = ", …" if len(words) > MAX_NAMED_INPUTS else ""
    return f"example: {{{', '.join(words[:MAX_NAMED_INPUTS])}{more}}}"


def row_axis(spec: TensorSpec, axes: RowAxes | None) -> int | None:
    """Return the axis of rows: from `axes`, or 0 if the model leaves it open, or None."""
    if axes is not None:
        return axes[spec.name]
    return 0 if spec.rows_vary else None


def synthetic_inputs(
    inputs: Sequence[TensorSpec],
    rows: int,
    length: int,
    axes: RowAxes | None = None,
    like: Arrays | None = None,
) -> Arrays:
    """Make inputs of `rows` rows, the same every time, with a different scale for each row.

    length: The size of open dimensions.
    axes: The axis of rows of each input; default: axis 0 if it is open.
    like: A request that gives the other sizes, and the inputs without rows; default: none.

    Whole numbers are 0 or 1, because most are indices or masks. The first one of a row of several
    is always 1.
    """
    random = np.random.default_rng(0)
    made = {}
    for spec in inputs:
        axis = row_axis(spec, axes)
        sizes = [size if isinstance(size, int) else length for size in spec.shape or ()]
        if like is not None:
            sizes = list(like[spec.name].shape)
        if axis is None and like is not None:
            made[spec.name] = like[spec.name]
        elif axis is None:
            made[spec.name] = _synthetic_array(spec, sizes, np.random.default_rng(0))
        else:
            sizes.insert(0, rows)
            del sizes[axis + 1]
            array = _synthetic_array(spec, sizes, random)
            made[spec.name] = np.ascontiguousarray(np.moveaxis(array, 0, axis))
    return made


def _repeated(
    like: Arrays, inputs: Sequence[TensorSpec], rows: int, axes: RowAxes | None
) -> Arrays:
    made = {}
    for spec in inputs:
        array, axis = like[spec.name], row_axis(spec, axes)
        if axis is not None and (there := array.shape[axis]):
            array = array.take(np.arange(rows) % there, axis)
        made[spec.name] = array
    return made


def _synthetic_array(spec: TensorSpec, shape: Sequence[int], random: np.random.Generator) -> Array:
    """Return an array of this shape, with rows along axis 0."""
    dtype = spec.dtype  # raises if the input is not a tensor
    kind = BY_NAME[spec.datatype].kind
    array: Array
    if kind == "text":
        array = np.asarray(random.integers(0, 100, shape)).astype(str).astype(object)
    elif kind in {"int", "bool"}:
        array = np.asarray(random.integers(0, 2, shape)).astype(dtype)
        if array.ndim > 1 and array.size:
            array.reshape(len(array), -1)[:, 0] = 1
    else:
        scales = np.resize(SCALES, shape[0]).reshape(-1, *[1] * (len(shape) - 1)) if shape else 1.0
        array = np.asarray(random.standard_normal(shape) * scales).astype(dtype)
    return array
