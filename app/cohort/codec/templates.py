"""Responses of one form to small requests of rows, written together.

A response is a text that all responses of its form have alike, with gaps for what differs: rows,
ids, times. The text is made once for each selection of outputs that is asked for, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import mod
from typing import Any, NamedTuple

import orjson

from cohort.codec.labels import Labeller
from cohort.errors import CohortError
from cohort.tensors import Array

MOST_KNOWN_TEXTS = 4096
"""Texts that are kept."""

NO_LABELS, UNASKED = -1, -2
"""The `top` of a form that has no place for labels, and of one that is not to have any."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Outputs of a version that are asked for; it is known by its identity.

    model, version, variant: What answers; the variant is "" without a rollout.
    positions, names, datatypes: Those of each output.
    labellers: What names the classes of each; None for one without names. Default: none has any.
    """

    model: str
    version: str
    variant: str
    positions: Sequence[int]
    names: Sequence[str]
    datatypes: Sequence[str]
    labellers: Sequence[Labeller | None] = ()

    def labelled(self, top: int) -> list[tuple[int, Labeller]]:
        """What names classes, with the places of the outputs; `top` as `ResponseTemplate` has."""
        return [
            (place, one)
            for place, one in enumerate(self.labellers)
            if one is not None and (top > 0 or (one.named is not None and top != UNASKED))
        ]

    def can_label(self, top: int) -> bool:
        """Whether its responses have the labels that they should, written in no time."""
        found = self.labelled(top)
        if not found:
            return top <= 0
        return top != NO_LABELS and all(one.is_short(top) for _, one in found)


class RunOutputs(NamedTuple):
    """The outputs of a run that requests shared, as far as they asked for them.

    arrays: Axis 0 is the rows of all requests.
    seconds: The inference time.
    counts: How many rows each request has, one after the other.
    ids: What its caller calls each.
    """

    selection: Selection
    arrays: Sequence[Array]
    seconds: float
    counts: Sequence[int]
    ids: Sequence[str | None]


Gap = Callable[[RunOutputs], Sequence[bytes] | None]
"""Gives what fills a gap in each response; None where the outputs cannot be written so."""

WriteRows = Callable[[Array, Sequence[int]], Sequence[bytes] | None]
"""Gives the rows of each request, as `nested_texts` does."""

Parts = list[bytes | Gap]
"""The bytes of a response, and the gaps in their places."""

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of outputs, of one request's rows; none for a template that is not sized."""


class Text(NamedTuple):
    """A response that is not filled yet.

    headers: Its headers.
    seal: Makes body and headers of the bytes, and of how many rows they have; default None: they
        are the body.
    """

    parts: Parts
    headers: object = None
    seal: Callable[[bytes, int], tuple[bytes, object]] | None = None


class ResponseTemplate:
    """How responses of one form are written; requests that share it are answered together.

    outputs: The names of the outputs that are asked for; None: all.
    text: Gives a response.
    sized: Whether it differs by its shapes; default False.
    top: How many labels of each row are asked for; 0: as the version's config says; UNASKED: none.
        Default NO_LABELS: they are not written in this form.
    """

    __slots__ = ("_sized", "_text", "outputs", "top")

    def __init__(
        self,
        outputs: tuple[str, ...] | None,
        text: Callable[[Selection, Shapes], Text],
        *,
        sized: bool = False,
        top: int = NO_LABELS,
    ) -> None:
        self.outputs = outputs
        self.top = top
        self._text = text
        self._sized = sized

    def write(self, run: RunOutputs) -> Iterable[tuple[bytes, Any]] | None:
        """Write a response for each request: its body and its headers.

        None where outputs have not one row for each of the inputs, NaN or infinity.
        """
        counts = run.counts
        form, gaps, text = self._form(run, counts[0])
        columns = []
        for gap in gaps:
            column = gap(run)
            if column is None:
                return None
            columns.append(column)
        forms: Iterable[bytes] = repeat(form)
        if self._sized and counts.count(counts[0]) < len(counts):
            known = {count: self._form(run, count)[0] for count in set(counts)}
            forms = [known[count] for count in counts]
        filled = [*map(mod, forms, zip(*columns, strict=True))]
        if text.seal is None:
            return zip(filled, repeat(text.headers), strict=False)
        return [*map(text.seal, filled, counts)]

    def _form(self, run: RunOutputs, count: int) -> tuple[bytes, Sequence[Gap], Text]:
        shapes: Shapes = ()
        if self._sized:
            shapes = tuple([(count, *array.shape[1:]) for array in run.arrays])
        return _form_of(self._text, run.selection, shapes)


@lru_cache(MOST_KNOWN_TEXTS)
def _form_of(
    write: Callable[[Selection, Shapes], Text], selection: Selection, shapes: Shapes
) -> tuple[bytes, Sequence[Gap], Text]:
    """A response with a `%b` for each of its gaps, and those."""
    text = write(selection, shapes)
    form = [one.replace(b"%", b"%%") if isinstance(one, bytes) else b"%b" for one in text.parts]
    return b"".join(form), [one for one in text.parts if not isinstance(one, bytes)], text


def output_gap(place: int, write: WriteRows) -> Gap:
    """The gap for an output, whose rows `write` gives for each request."""
    return lambda run: write(run.arrays[place], run.counts)


def id_gap(run: RunOutputs) -> Sequence[bytes]:
    """The gap for an id in JSON."""
    return [orjson.dumps(one) for one in run.ids]


def object_parts(names: Sequence[str], write: WriteRows, *, unnamed: bool = False) -> Parts:
    """An object in JSON that has each output by its name; the only one itself where `unnamed`."""
    if unnamed and len(names) == 1:
        return [output_gap(0, write)]
    parts: Parts = []
    for place, name in enumerate(names):
        parts += [b"," if parts else b"{", orjson.dumps(name), b":", output_gap(place, write)]
    return [*parts, b"}"]


def label_parts(selection: Selection, top: int) -> Parts:
    """The key `labels` and what JSON has there, after a comma; nothing where none are given."""
    found = selection.labelled(top)
    if len(found) == 1:
        return [b',"labels":', _label_gap(*found[0], top)]
    parts: Parts = []
    for place, labeller in found:
        parts += [b"," if parts else b',"labels":{', orjson.dumps(labeller.spec.name), b":"]
        parts.append(_label_gap(place, labeller, top))
    return [*parts, b"}"] if parts else []


def _label_gap(place: int, labeller: Labeller, top: int) -> Gap:
    def write(run: RunOutputs) -> Sequence[bytes] | None:
        try:
            rows = labeller.texts(run.arrays[place], top)
        except CohortError:
            return None  # who answers one by one says why
        return _cut(rows, run.counts)

    return write


def name_gap(
    place: int, labeller: Labeller, top: int, write: Callable[[Sequence[str]], bytes]
) -> Gap:
    """The gap for the names of an output's classes, those of a request written by `write`."""

    def write_all(run: RunOutputs) -> Sequence[bytes] | None:
        try:
            names = labeller.names(run.arrays[place], top)
        except CohortError:
            return None
        ends = [*accumulate(run.counts, initial=0)]
        if ends[-1] != len(names):
            return None
        return [write(names[begin:end].ravel().tolist()) for begin, end in pairwise(ends)]

    return write_all


def _cut(rows: Sequence[bytes], counts: Sequence[int]) -> Sequence[bytes] | None:
    if len(rows) == len(counts) == sum(counts):
        return [b"[%b]" % row for row in rows]
    ends = [*accumulate(counts, initial=0)]
    if ends[-1] != len(rows):
        return None
    return [b"[%b]" % b",".join(rows[begin:end]) for begin, end in pairwise(ends)]
