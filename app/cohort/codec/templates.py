"""Templates for the responses to small requests of rows; one text for several responses.

All responses of one form share a text. It has gaps for the values that differ: rows, ids and times.
The text is made once for each requested selection of outputs, and cached.
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

MAX_KNOWN_TEXTS = 4096
"""Maximum texts in the cache."""

NO_LABELS, UNASKED = -1, -2
"""Values of `top`: the form cannot have labels, or the request does not want labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The requested outputs of a version, compared by identity.

    model, version, variant: The names of the version that answers; variant is "" without a rollout.
    positions, names, datatypes: The position, name and datatype of each output.
    labellers: The labeller of each output; None for an output without labels. Default: no labels.
    """

    model: str
    version: str
    variant: str
    positions: Sequence[int]
    names: Sequence[str]
    datatypes: Sequence[str]
    labellers: Sequence[Labeller | None] = ()

    def labelled(self, top: int) -> list[tuple[int, Labeller]]:
        """Return the labellers in use and their places; `top` as in `ResponseTemplate`."""
        return [
            (place, one)
            for place, one in enumerate(self.labellers)
            if one is not None and (top > 0 or (one.named is not None and top != UNASKED))
        ]

    def can_label(self, top: int) -> bool:
        """Return True if the form can have the requested labels and they are quick to write."""
        found = self.labelled(top)
        if not found:
            return top <= 0
        return top != NO_LABELS and all(one.is_short(top) for _, one in found)


class RunOutputs(NamedTuple):
    """The requested outputs of a run that several requests shared.

    arrays: The outputs; axis 0 is the rows of all requests.
    seconds: The inference time.
    counts: The number of rows of each request, in order.
    ids: The id of each request.
    """

    selection: Selection
    arrays: Sequence[Array]
    seconds: float
    counts: Sequence[int]
    ids: Sequence[str | None]


Gap = Callable[[RunOutputs], Sequence[bytes] | None]
"""A function that returns a gap's text for each response; None if outputs do not fit the form."""

WriteRows = Callable[[Array, Sequence[int]], Sequence[bytes] | None]
"""A function that writes the rows of each request, such as `nested_texts`."""

Parts = list[bytes | Gap]
"""The bytes of a response, with gaps in between."""

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the outputs for one request's rows; empty for a template that is not sized."""


class Text(NamedTuple):
    """A response whose gaps are not filled yet.

    headers: The headers of the response.
    seal: Makes body and headers from the bytes and their number of rows; default None: the bytes
        are the body.
    """

    parts: Parts
    headers: object = None
    seal: Callable[[bytes, int], tuple[bytes, object]] | None = None


class ResponseTemplate:
    """A writer of responses of one form; requests that share it are answered together.

    outputs: The names of the requested outputs; None for all.
    text: A function that makes the unfilled response.
    sized: True if the text depends on shapes; default False.
    top: The requested number of labels per row; 0 uses the version's config, UNASKED omits labels.
        Default NO_LABELS: this form cannot have labels.
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

        Returns None if outputs have NaN or infinity, or not one row for each input row.
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


@lru_cache(MAX_KNOWN_TEXTS)
def _form_of(
    write: Callable[[Selection, Shapes], Text], selection: Selection, shapes: Shapes
) -> tuple[bytes, Sequence[Gap], Text]:
    """Return a response with `%b` for each gap, the gaps and the text."""
    text = write(selection, shapes)
    form = [one.replace(b"%", b"%%") if isinstance(one, bytes) else b"%b" for one in text.parts]
    return b"".join(form), [one for one in text.parts if not isinstance(one, bytes)], text


def output_gap(place: int, write: WriteRows) -> Gap:
    """Return the gap for an output; `write` writes the rows of each request."""
    return lambda run: write(run.arrays[place], run.counts)


def id_gap(run: RunOutputs) -> Sequence[bytes]:
    """Fill the gap for an id in JSON."""
    return [orjson.dumps(one) for one in run.ids]


def object_parts(names: Sequence[str], write: WriteRows, *, unnamed: bool = False) -> Parts:
    """Return a JSON object of outputs by name; if `unnamed`, a single output without its name."""
    if unnamed and len(names) == 1:
        return [output_gap(0, write)]
    parts: Parts = []
    for place, name in enumerate(names):
        parts += [b"," if parts else b"{", orjson.dumps(name), b":", output_gap(place, write)]
    return [*parts, b"}"]


def label_parts(selection: Selection, top: int) -> Parts:
    """Return a comma, the key `labels` and its value; nothing without labels."""
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
            return None  # the general path reports the error
        return _cut(rows, run.counts)

    return write


def name_gap(
    place: int, labeller: Labeller, top: int, write: Callable[[Sequence[str]], bytes]
) -> Gap:
    """Return the gap for an output's labels; `write` writes those of one request."""

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
