"""The verdict on a model: each output row depends only on the same row of the inputs, or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cohort.errors import quoted
from cohort.model_file.graphs import GraphInput, ModelGraphs
from cohort.model_file.protobuf import TENSOR
from cohort.row_independence.order import run_order
from cohort.row_independence.sizes import Size
from cohort.row_independence.tensors import (
    NO_NODE,
    Followed,
    Loss,
    Lost,
    NodePlace,
    RowAxis,
    Tensor,
    TensorSequence,
)
from cohort.row_independence.walk import GraphTooLarge, Limit, Walk

MAX_FOLLOWED_NODES, MAX_CPU_SECONDS = 200_000, 5.0
"""Limits for all guesses for one model together."""

MAX_GUESSES = 10
TIMED_RANK = 3
"""The rank of a time series, whose second axis may be the rows."""

TOO_LARGE = "the graph is too large to follow"


class RowKind(StrEnum):
    """The kind of a verdict on a model's rows.

    PROVEN: Each row of each output is a function of the same row of all inputs.
    SHARED: As PROVEN, if all requests of a run have equal values in some inputs.
    REFUTED: A node appears to combine rows.
    UNKNOWN: A node is not understood.
    RANDOM: A node returns a different result each time.
    FIXED: No input has an axis of variable size for rows.
    """

    PROVEN = "proven"
    SHARED = "shared"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    RANDOM = "not deterministic"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The location of an output's rows: `each` entries along `axis` for each row.

    each: The number of entries; None if it depends on the sizes of the request.
    """

    axis: int
    each: int | None = 1


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A kind of request: same sizes, and same values in the inputs that all rows share.

    shapes: The shape of each input; an input with rows counts as one row.
    values: The elements of the inputs without rows, in row-major order.
    """

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, tuple[int | float | bool, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the sizes and values as text, such as `"x" [1, 512], "rate" 16000`."""
        return ", ".join(
            f"{quoted(name)} {', '.join(map(str, self.values[name]))}"
            if len(self.values.get(name, ())) == 1
            else f"{quoted(name)} {list(shape)}"
            for name, shape in self.shapes.items()
        )


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The verdict on a model.

    kind: The kind of the verdict.
    node, reason: The node that combines or loses rows, and the reason; "" if rows are independent.
    inputs: The row axis of each input; None if the input's values must be equal in a run.
    outputs: The location of each output's rows; None if the output is the same for all rows.
    equal_sizes: True if the verdict holds only for requests in which sizes with the same name are
        equal.
    dependence: The reason why the cost of a run depends on input values; "" if it does not.
    place: The position of `node` in the graph.
    kernels: If rows are proven independent, the kernels that compute with rows (see `kernel_of`),
        each with a description of its first node.
    requests: The only kinds of request for which the verdict holds; empty means all requests.
    other_requests: Reasons why it is not proven for the other example requests, one sentence each.
    by_request: True if more may be provable for requests of given sizes. A node is then not
        understood, or is in a branch that these requests may not take.
    """

    kind: RowKind
    node: str = ""
    reason: str = ""
    inputs: Mapping[str, int | None] = field(default_factory=dict)
    outputs: Mapping[str, OutputRows | None] = field(default_factory=dict)
    equal_sizes: bool = False
    dependence: str = ""
    place: NodePlace = NO_NODE
    kernels: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[RequestKind, ...] = ()
    other_requests: tuple[str, ...] = ()
    by_request: bool = False

    @property
    def independent(self) -> bool:
        """Return True if rows are proven not to influence each other."""
        return self.kind in (RowKind.PROVEN, RowKind.SHARED)

    @property
    def axes(self) -> Mapping[str, int | None] | None:
        """Return `inputs` if rows are proven not to influence each other; otherwise None."""
        return self.inputs if self.independent else None

    def __str__(self) -> str:
        """Return the verdict as a sentence without a full stop."""
        where = f"{self.node}: {self.reason}" if self.node else self.reason
        if self.requests:
            kinds = " or ".join(map(str, self.requests))
            return f"rows do not influence each other in requests of these sizes only: {kinds}"
        match self.kind:
            case RowKind.PROVEN:
                return "rows do not influence each other"
            case RowKind.SHARED:
                equal = [quoted(name) for name, axis in self.inputs.items() if axis is None]
                return (
                    f"rows do not influence each other in requests of equal {' and '.join(equal)}"
                )
            case RowKind.REFUTED:
                return f"rows may influence each other; {where}"
            case RowKind.RANDOM:
                return f"it gives another result each time; {where}"
            case RowKind.UNKNOWN:
                return f"rows are not shown to be independent; {where}"
        return where


NOT_READ = RowVerdict(RowKind.UNKNOWN, reason="the model was not read yet")

Assignment = Mapping[str, int | None]


def prove_rows(
    model: ModelGraphs,
    *,
    guesses: Sequence[Assignment] | None = None,
    max_nodes: int = MAX_FOLLOWED_NODES,
    max_seconds: float = MAX_CPU_SECONDS,
) -> RowVerdict:
    """Follow the rows of all inputs through a model; try axis 0 first, then other axes.

    guesses: Possible row axes; by default they are derived from the shapes of the inputs.
    max_nodes, max_seconds: Limits for all guesses together.

    Inputs with a default among the initializers are treated as that constant. Raises nothing.
    """
    inputs = [one for one in model.main.inputs if one.name not in model.main.constants]
    limit = Limit(max_nodes, max_seconds)
    tried: list[tuple[int, RowVerdict]] = []
    try:
        order = run_order(model.main.nodes)
        nodes = [model.main.nodes[at] for at in order]
        model = model._replace(main=model.main._replace(nodes=nodes))
        for assignment in guess_rows(inputs) if guesses is None else guesses:
            for equal_sizes in (False, True)[: 1 + _has_twins(inputs)]:
                if count_with_rows(assignment) <= max(
                    (count_with_rows(one.inputs) for _, one in tried if one.kind is RowKind.SHARED),
                    default=0,
                ):
                    continue
                walk = Walk(model, limit, order)
                tried.append(_try(walk, model, inputs, assignment, equal_sizes=equal_sizes))
                if tried[-1][1].kind in (RowKind.PROVEN, RowKind.RANDOM):
                    return tried[-1][1]
        if not tried:
            walk = Walk(model, limit, order)
            _, verdict = _try(walk, model, inputs, dict.fromkeys(_names(inputs)))
            kind = RowKind.RANDOM if verdict.kind is RowKind.RANDOM else RowKind.FIXED
            return replace(verdict, kind=kind, reason=verdict.reason or _why_fixed(inputs))
    except (GraphTooLarge, RecursionError):
        dependence = next((one.dependence for _, one in tried), "") or TOO_LARGE
        tried.append((0, RowVerdict(RowKind.UNKNOWN, reason=TOO_LARGE, dependence=dependence)))
    shared = [one for _, one in tried if one.kind is RowKind.SHARED]
    if shared:
        return max(shared, key=lambda one: count_with_rows(one.inputs))
    _, verdict = max(tried, key=lambda one: (count_with_rows(one[1].inputs), one[0]))
    likely = guesses is not None or any(_may_have_rows(one.shape or ()) for one in inputs)
    if verdict.node and not likely:
        reason = _why_fixed(inputs)
        return replace(verdict, kind=RowKind.FIXED, node="", reason=reason, place=NO_NODE)
    return replace(verdict, by_request=any(_may_be_by_request(one) for _, one in tried))


def _may_be_by_request(one: RowVerdict) -> bool:
    if one.kind is RowKind.REFUTED:
        return len(one.place.path) > 1
    return one.kind is RowKind.UNKNOWN and bool(one.node)


def count_with_rows(assignment: Assignment) -> int:
    """Return the number of inputs that have rows."""
    return sum(axis is not None for axis in assignment.values())


def _try(
    walk: Walk,
    model: ModelGraphs,
    inputs: Sequence[GraphInput],
    assignment: Assignment,
    *,
    equal_sizes: bool = False,
) -> tuple[int, RowVerdict]:
    """Follow rows. Return the number of the first node that loses them, and the verdict."""
    given = [_input(walk, one, assignment.get(one.name), equal_sizes) for one in inputs]
    main = model.main._replace(inputs=list(inputs))
    names = [one.name for one in main.outputs]
    outputs = dict(zip(names, walk.graph(main, given), strict=True))
    lost = [one for one in map(_problem, outputs, outputs.values()) if one is not None]
    if lost:
        first = min(lost, key=lambda one: (one.level, one.number))
        verdict = RowVerdict(
            _KINDS[first.level],
            first.node,
            first.reason,
            assignment,
            dependence=walk.dependence,
            place=first.place,
        )
        return min(one.number for one in lost), verdict
    kind = RowKind.SHARED if None in assignment.values() else RowKind.PROVEN
    places = {name: _place(one) for name, one in outputs.items()}
    return _ALL, RowVerdict(
        kind,
        "",
        "",
        assignment,
        places,
        equal_sizes=equal_sizes,
        dependence=walk.dependence,
        kernels=walk.kernels,
    )


_KINDS = {Loss.RANDOM: RowKind.RANDOM, Loss.MIXES: RowKind.REFUTED, Loss.UNKNOWN: RowKind.UNKNOWN}
_ALL = 1 << 40  # after every node


def _problem(name: str, output: Followed) -> Lost | None:
    """Return the reason why an output cannot be split into rows; None if it can."""
    where = f"output {quoted(name)}"
    match output:
        case Lost():
            return output
        case TensorSequence():
            return Lost(_ALL, Loss.UNKNOWN, where, "it is a sequence")
        case Tensor(padding=str()):
            return Lost(_ALL, Loss.MIXES, where, "it is as wide as the longest row of the run")
        case Tensor(counts=True):
            return Lost(_ALL, Loss.MIXES, where, "it depends on the number of rows")
        case Tensor(rows=RowAxis(outer=outer)) if outer != 1:
            return Lost(_ALL, Loss.MIXES, where, "it has all rows several times behind each other")
    return None


def _place(output: Followed) -> OutputRows | None:
    if not isinstance(output, Tensor) or output.rows is None:
        return None
    inner = output.rows.inner
    return OutputRows(output.rows.axis, inner if isinstance(inner, int) else None)


def _input(walk: Walk, one: GraphInput, axis: int | None, equal_sizes: bool) -> Followed:
    if one.kind != TENSOR:
        return Lost(0, Loss.UNKNOWN, f"input {quoted(one.name)}", "it is not a tensor", True)
    if one.shape is None:
        reason = "the file does not declare its number of dimensions"
        return Lost(0, Loss.UNKNOWN, f"input {quoted(one.name)}", reason, True)
    shape: list[Size] = []
    for at, size in enumerate(one.shape):
        if at == axis:
            shape.append(walk.symbols.rows)
        elif isinstance(size, int):
            shape.append(size)
        else:
            key = size if equal_sizes and size else (one.name, at)
            shape.append(walk.symbols.named(key))
    rows = None if axis is None else RowAxis(axis)
    return Tensor(tuple(shape), one.dtype, rows, by_values=True)


# --- Guesses of row axes.


def guess_rows(inputs: Sequence[GraphInput]) -> Iterator[Assignment]:
    """Yield guesses of each input's row axis, the most likely guess first."""
    found: list[Assignment] = []
    for guess in _all_guesses({one.name: one.shape or () for one in inputs}):
        if guess not in found and any(axis is not None for axis in guess.values()):
            found.append(guess)
            yield guess
        if (
            len(found) == MAX_GUESSES
        ):  # a guess has an entry for every input, so their number must be bounded
            return


def _all_guesses(shapes: Mapping[str, Sequence[int | str | None]]) -> Iterator[Assignment]:
    def axis_of(shape: Sequence[int | str | None], names: Set[str]) -> int | None:
        return next((at for at, size in enumerate(shape) if size in names), None)

    def is_open(shape: Sequence[int | str | None], axis: int) -> bool:
        return len(shape) > axis and not isinstance(shape[axis], int)

    first = {name for name, shape in shapes.items() if is_open(shape, 0)}
    batches = {size for name in first if isinstance(size := shapes[name][0], str)}
    yield {n: 0 if n in first else axis_of(shape, batches) for n, shape in shapes.items()}
    named = Counter(size for shape in shapes.values() for size in shape if isinstance(size, str))
    for symbol in sorted(named, key=lambda one: (not _like_batch(one), -named[one], one)):
        yield {n: axis_of(shape, {symbol}) for n, shape in shapes.items()}
    for axis in (1, 2):  # for recurrent states such as [2, ?, 128]
        yield {
            n: 0 if n in first else axis if is_open(shape, axis) else None
            for n, shape in shapes.items()
        }
    yield {
        n: 1 if is_open(shape, 1) else 0 if n in first and len(shape) == 1 else None
        for n, shape in shapes.items()
    }
    for skipped in shapes:  # this input is shared by all rows
        if skipped in first:
            yield {n: 0 if n in first and n != skipped else None for n in shapes}


def _may_have_rows(shape: Sequence[int | str | None]) -> bool:
    """Return True if an open axis is likely to be the row axis, not time or an image size."""
    first = shape[: 2 if len(shape) == TIMED_RANK else 1]
    return any(not isinstance(size, int) for size in first) or any(
        isinstance(size, str) and _like_batch(size) for size in shape
    )


def _like_batch(name: str) -> bool:
    return "batch" in name.lower() or name.lower() in ("n", "b", "bs")


def _names(inputs: Sequence[GraphInput]) -> list[str]:
    return [one.name for one in inputs]


def _has_twins(inputs: Sequence[GraphInput]) -> bool:
    """Return True if two inputs have a size of the same name."""
    names = [size for one in inputs for size in set(one.shape or ()) if isinstance(size, str)]
    return len(names) > len(set(names))


def _why_fixed(inputs: Sequence[GraphInput]) -> str:
    if not inputs:
        return "it has no inputs"
    return "no input takes any number of rows"
