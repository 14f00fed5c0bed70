"""Labels: the names of the best classes of each row, next to the numbers of an output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import orjson

from cohort.codec.json_outputs import encode_tensor
from cohort.codec.json_tensors import shown
from cohort.codec.ranking import best_of, check_classes, scores_at
from cohort.errors import InvalidInput, quoted, quoted_names
from cohort.tensors import BY_NAME, Array, TensorSpec

MAX_TOP = 1 << 20
"""Maximum labels of a row in a request; if an output has fewer classes, it returns all."""

MAX_LABEL_TEXT = 64 << 20
"""Maximum bytes of labels in one response."""

FEW_LABELS = 32
"""Maximum labels of a row if many requests are written at once."""

LABELS_AT_ONCE = 1 << 14
"""Labels written in one call, during which no other thread runs."""

LABEL_BYTES = 128
"""Cost of writing an object with a label, without its text, in bytes of JSON."""


def read_top(place: str, value: object) -> int:
    """Read the number of labels per row, which may be a decimal string. Raises InvalidInput.

    place: The position of the value in the request, such as `parameters.top`.
    """
    number = value
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdecimal():
        number = int(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidInput(f"{place} must be a whole number >= 1, got {shown(value)}")
    return min(number, MAX_TOP)


def can_be_labelled(spec: TensorSpec) -> bool:
    """Return True if the spec allows an output of numbers in columns."""
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind == "text":
        return False
    shape = spec.shape
    return shape is None or len(shape) > 1 or (len(shape) == 1 and isinstance(shape[0], int))


class Labeller:
    """Writer of the names of an output's best classes.

    spec: The spec of the output, whose last axis is its classes.
    labels: The names of the classes.
    output: The name of the output of labels in the Open Inference Protocol.
    named: The same as in the spec.

    The name of a class without a label is its index.
    """

    __slots__ = ("_kind", "_known", "labels", "named", "output", "spec", "widest")

    def __init__(self, spec: TensorSpec, labels: Sequence[str], output: str) -> None:
        self.spec = spec
        self.labels = labels
        self.output = output
        self.named = spec.named
        self.widest = max(map(len, labels), default=0)
        self._kind = BY_NAME[spec.datatype].kind
        self._known: dict[int, bytes] = {}

    def count(self, classes: int, top: int) -> int:
        """Return the maximum labels of a row with this number of classes; `top` as in `texts`."""
        wanted = top or self.named or (1 if self.spec.threshold is None else classes)
        return min(wanted, classes)

    def is_list(self, top: int) -> bool:
        """Return True if a row has a list of labels instead of one label."""
        return bool(top or self.named or self.spec.threshold is not None)

    def is_short(self, top: int) -> bool:
        """Return True if the labels of a few rows are quick to write."""
        count = self.count(len(self.labels), top)
        return count <= FEW_LABELS and self.widest <= 8 * LABEL_BYTES

    def work(self, array: Array, top: int) -> int:
        """Estimate the cost of `texts`, in bytes of JSON."""
        classes = array.shape[-1] if array.ndim else 1
        rows = array.size // max(classes, 1)
        return array.size * 4 + rows * self.count(classes, top) * (LABEL_BYTES + self.widest)

    def texts(
        self, array: Array, top: int, check: Callable[[], None] = lambda: None
    ) -> Sequence[bytes]:
        """Write the labels of each row in JSON: an object, a list of objects, or nested lists.

        array: The output [rows, …, classes]; [classes] is one row.
        top: The number of labels of each row; 0 uses the config.
        check: Called for each part; an error that it raises ends the writing. Default: no check.

        Raises InvalidInput above the limit of a request, InferenceFailed for NaN and infinity.
        """
        best = self._best(array, top, check)
        count = best.each
        if len(best.places) <= LABELS_AT_ONCE:
            texts = self._texts(best)
        else:
            texts = []
            step = max(LABELS_AT_ONCE // count, 1)
            for row in range(0, best.rows, step):
                check()
                texts += self._texts(best.part(row, step))
        for size in reversed(array.shape[1:-1]):
            texts = [
                b"[%b]" % b",".join(texts[at * size : (at + 1) * size])
                for at in range(prod(array.shape[:1]) if not size else len(texts) // size)
            ]
        return texts

    def names(self, array: Array, top: int, check: Callable[[], None] = lambda: None) -> Array:
        """Return the labels as BYTES, [rows, …] or [rows, …, count]; see `texts`.

        A missing label is "".
        """
        best = self._best(array, top, check)
        names: Array = np.empty(len(best.places), np.object_)
        names[:] = [self._label(one) for one in best.places]
        rows = array.shape[:-1] or (1,)
        if best.kept is None:
            return names.reshape(rows) if best.each else np.full(rows, "", np.object_)
        names = names.reshape(best.rows, best.each)
        for row, kept in zip(names, best.kept, strict=True):
            row[kept:] = ""
        return names.reshape(*rows, best.each)

    def shape(self, array_shape: Sequence[int], top: int) -> tuple[int, ...]:
        """Return the shape of the array from `names` for an output of this shape."""
        rows = tuple(array_shape[:-1]) or (1,)
        return (*rows, self.count(array_shape[-1], top)) if self.is_list(top) else rows

    def _texts(self, best: _Best) -> list[bytes]:
        """Write the labels of rows in JSON, without the lists of the other axes."""
        numbers = _numbers(encode_tensor(self.spec.name, best.scores))
        known, count = self._known, best.each
        begins = [known.get(one) or self._begin(one) for one in best.places]
        texts = [b"%b%b}" % pair for pair in zip(begins, numbers, strict=False)]
        if best.kept is not None:
            return [
                b"[%b]" % b",".join(texts[row * count : row * count + kept])
                for row, kept in enumerate(best.kept)
            ]
        return texts if count else [b"null"] * best.rows

    @property
    def tensor(self) -> TensorSpec:
        """Return the spec of the output of labels if no request sets `top`."""
        shape = self.spec.shape
        if shape is not None:
            shape = shape[:-1] or (1,)
            if self.is_list(0):
                shape = (*shape, self.count(len(self.labels), 0))
        return TensorSpec(self.output, "BYTES", shape)

    def _best(self, array: Array, top: int, check: Callable[[], None]) -> _Best:
        spec = self.spec
        if not array.ndim:
            raise InvalidInput(f"output {quoted(spec.name)} is one number, which has no classes")
        classes = array.shape[-1]
        scores = array.reshape(-1, classes) if classes else array.reshape(prod(array.shape[:-1]), 0)
        count = self.count(classes, top)
        check_classes(spec, len(scores), count)
        if len(scores) * count * self.widest > MAX_LABEL_TEXT:
            raise InvalidInput(
                f"{len(scores)} rows of {count} labels of output {quoted(spec.name)} exceed the "
                f"limit of {MAX_LABEL_TEXT >> 20} MiB per request: send fewer rows, or ask for "
                "fewer labels"
            )
        places = best_of(scores, self._kind, count, check)
        found = scores_at(scores, places)
        kept: Sequence[int] | None = None
        if spec.threshold is not None:
            kept = (found >= spec.threshold).reshape(places.shape).sum(axis=1).tolist()
        elif self.is_list(top):
            kept = [count] * len(scores)
        return _Best(places.ravel().tolist(), found, len(scores), count, kept)

    def _label(self, place: int) -> str:
        return self.labels[place] if place < len(self.labels) else str(place)

    def _begin(self, place: int) -> bytes:
        begin = b'{"label":%b,"score":' % orjson.dumps(self._label(place))
        self._known[place] = begin
        return begin


def _numbers(scores: object) -> list[bytes]:
    return orjson.dumps(scores, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


class _Best(NamedTuple):
    places: list[int]
    scores: Array
    rows: int
    each: int  # maximum labels of a row
    kept: (
        Sequence[int] | None
    )  # length of each row's list; None if a row has one label instead of a list

    def part(self, row: int, rows: int) -> _Best:
        """Return up to `rows` rows from number `row` on."""
        at, end = row * self.each, (row + rows) * self.each
        scores = self.scores[at:end]
        kept = None if self.kept is None else self.kept[row : row + rows]
        return _Best(self.places[at:end], scores, min(rows, self.rows - row), self.each, kept)


def labellers_of(outputs: Sequence[TensorSpec], labels: Sequence[str]) -> list[Labeller | None]:
    """Make a labeller for each output; None for an output without labels.

    labels: The model's labels, for outputs without labels that have as many columns; may be empty.
    """
    taken = {spec.name for spec in outputs}
    made: list[Labeller | None] = []
    for spec in outputs:
        own = spec.labels
        if not own and spec.shape and spec.shape[-1] == len(labels):
            own = labels
        if not own or not can_be_labelled(spec):
            made.append(None)
            continue
        name = f"{spec.name}_labels"
        while name in taken:
            name += "_"
        taken.add(name)
        made.append(Labeller(spec, own, name))
    return made


def chosen(
    labellers: Sequence[Labeller | None], positions: Sequence[int], top: int
) -> list[tuple[int, Labeller]]:
    """Return the labellers of a response, with their positions among all outputs.

    positions: The outputs in the response.
    top: The requested number of labels per row; 0 if the request has no number.

    Raises InvalidInput if the request asks for labels and its outputs do not have any.
    """
    found = [
        (position, one)
        for position in positions
        if (one := labellers[position]) is not None and (top or one.named is not None)
    ]
    if top and not found:
        raise _without(labellers)
    return found


def _without(labellers: Sequence[Labeller | None]) -> InvalidInput:
    having = [one.spec.name for one in labellers if one is not None]
    if having:
        return InvalidInput(
            "'top' asks for labels, but the requested outputs have no labels; only "
            f"{quoted_names(having)} {'has' if len(having) == 1 else 'have'} labels"
        )
    return InvalidInput(
        "'top' asks for labels, but this model's outputs have no labels. Set `outputs: {<name>: "
        "{labels: labels.txt}}` in its config.yaml or pipeline.yaml, with one label per column"
    )


def labels_work(
    labelled: Iterable[tuple[int, Labeller]], outputs: Sequence[Array], top: int
) -> int:
    """Estimate the cost of writing these labels, in bytes of JSON."""
    return sum([one.work(outputs[position], top) for position, one in labelled])


Labels = Mapping[str, Sequence[bytes]]
"""The labels of each row in JSON, by the names of outputs."""


def label_value(labels: Labels) -> orjson.Fragment:
    """Return the JSON value of `labels`: those of the only output, or an object by output."""
    texts = {name: b"[%b]" % b",".join(rows) for name, rows in labels.items()}
    if len(texts) == 1:
        return orjson.Fragment(next(iter(texts.values())))
    parts = [b"%b:%b" % (orjson.dumps(name), text) for name, text in texts.items()]
    return orjson.Fragment(b"{%b}" % b",".join(parts))


def write_labels(
    labelled: Iterable[tuple[int, Labeller]],
    outputs: Sequence[Array],
    top: int,
    check: Callable[[], None],
) -> orjson.Fragment | None:
    """Write the JSON value of `labels`, given the result of `chosen`; None omits the key."""
    texts = {one.spec.name: one.texts(outputs[position], top, check) for position, one in labelled}
    return label_value(texts) if texts else None
