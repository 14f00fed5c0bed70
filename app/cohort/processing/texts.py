"""`inputs.<name>.tokenizer`: text that the model's tokenizer converts to ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.batching import RunFeeds
from cohort.errors import InvalidInput, RunRefused, quoted
from cohort.processing.steps import Check, StepContext
from cohort.processing.tokenizing import (
    ASKED_AT_ONCE,
    Ids,
    Text,
    TextTokenizer,
    characters,
    open_tokenizer,
)
from cohort.tensors import Array, Arrays, TensorSpec

IDS, MASK, TYPES, POSITIONS = "ids", "mask", "types", "positions"

ROLES: Mapping[str, str] = {
    "input_ids": IDS,
    "input_word_ids": IDS,
    "attention_mask": MASK,
    "input_mask": MASK,
    "token_type_ids": TYPES,
    "segment_ids": TYPES,
    "input_type_ids": TYPES,
    "position_ids": POSITIONS,
}
"""Common names of the inputs of text models, with their roles."""

SHORT_TEXTS, SHORT_CHARACTERS = 4, 128
"""Maximum texts and characters to tokenize on the event loop: 0.1 ms with common tokenizers."""

BYTES_OF_A_CHARACTER = 160
"""Temporary memory of the library per character."""

SAID = ("A sentence.", "Another one, which is longer than the first, by some more words.")
"""Texts to try a model with at load."""

SAME = 0.02
"""Maximum difference between outputs with and without padding, relative to the largest output.

Models that quantize values during a run round them differently in different batches.
"""

ROUNDING = 1e-4


class TextStep:
    """A conversion of texts to the ids that a model accepts. Implements `Step` and `TriedStep`.

    Raises LoadFailed if the tokenizer is not valid or does not fit the model.
    """

    def __init__(self, context: StepContext) -> None:
        config = context.config
        self._pairs = config.pairs
        self._inputs = _model_inputs(context)
        ids = next(spec for spec, role in self._inputs if role == IDS)
        self._length = _fixed_length(context, self._inputs)
        self._masked = self._length is not None or any(r == MASK for _, r in self._inputs)
        assert config.tokenizer is not None  # noqa: S101 - the step requires this key
        name = config.tokenizer
        if Path(name).name != name:
            raise context.problem("tokenizer must be the name of a file in the version's folder")
        with context.naming("tokenizer"):
            opened = open_tokenizer(context.folder / name)
            self._tokenizer = TextTokenizer(
                opened, config.max_length, self._length, pairs=self._pairs
            )
        self._check_lengths(context)
        self._check_ids(context, name, ids)
        rows = ids.shape[0] if ids.shape and ids.shape[0] is not None else "N"
        self.spec = TensorSpec(context.name, "BYTES", (rows, 2) if self._pairs else (rows,))
        self.fills: Sequence[str] = [spec.name for spec, _ in self._inputs]
        self.example: Array = np.array([SAID if self._pairs else SAID[0]], np.object_)
        self.description = (
            f"{'pairs of texts' if self._pairs else 'text'}, of which {name} makes "
            f"{self._tokenizer.max_length} ids at most: {', '.join(self.fills)}"
        )

    def _check_lengths(self, context: StepContext) -> None:
        most, fixed = self._tokenizer.max_length, self._length
        if fixed is not None and most > fixed:
            raise context.problem(
                f"max_length is {most}, but the model expects {fixed} ids: set max_length: {fixed}"
            )
        special = self._tokenizer.special_ids
        if special >= most:
            raise context.problem(
                f"max_length is {most}, and the tokenizer adds {special} ids to each text"
            )

    def _check_ids(self, context: StepContext, name: str, ids: TensorSpec) -> None:
        entries, count = context.tables.get(ids.name), self._tokenizer.id_count
        if entries is not None and count > entries:
            raise context.problem(
                f"{name} has {count} ids, but the model's table for {ids.name} has {entries}: it "
                "is another model's tokenizer"
            )

    @property
    def max_length(self) -> int:
        """The maximum ids of a text."""
        return self._tokenizer.max_length

    # -- requests

    def is_short(self, values: Array) -> bool:
        """Return True for few, short texts and a tokenizer without unknown regular expressions."""
        if values.size > SHORT_TEXTS or not self._tokenizer.is_quick or values.dtype != np.object_:
            return False
        return sum(map(len, values.ravel().tolist())) <= SHORT_CHARACTERS

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """See `Step`. Raises InvalidInput if a text is too long."""
        rows, total = max(len(values), 1), 0
        longest = 0
        for number, text in enumerate(self._texts(values)):
            size = characters(text)
            if size > self._tokenizer.most_characters:
                raise self._wrong(
                    number,
                    f"has {size:,} characters; the limit is "
                    f"{self._tokenizer.most_characters:,}, of which the model uses the first "
                    f"{self._tokenizer.max_length} ids",
                )
            total, longest = total + size, max(longest, size)
        check()
        length = self._length or min(self._tokenizer.max_length, longest * 4 + 8)
        made = sum(np.dtype(spec.dtype).itemsize for spec, _ in self._inputs) * rows * length
        return 2 * made + BYTES_OF_A_CHARACTER * min(total, ASKED_AT_ONCE + longest)

    def prepare(self, values: Array, check: Check) -> Arrays:
        """See `Step`."""
        try:
            encoded = self._tokenizer.encode(self._texts(values), check)
        except InvalidInput as error:
            raise InvalidInput(f"input {quoted(self.spec.name)}, {error}") from None
        lengths = [len(one.ids) for one in encoded]
        if not all(lengths):
            raise self._wrong(
                lengths.index(0), "has no ids: the tokenizer returns no ids for its text"
            )
        if not self._masked:
            self._check_even(lengths)
        longest = self._length or max(lengths, default=0)
        width = np.array(lengths, np.int64)[:, None]
        places = np.arange(longest)[None, :]
        if self._tokenizer.pads_left:
            places = places - (longest - width)
        used = (places >= 0) & (places < width)
        made: Arrays = {}
        for spec, role in self._inputs:
            made[spec.name] = self._make(role, encoded, used, places).astype(spec.dtype, copy=False)
        return made

    def count(self, values: Array, check: Check) -> int:
        """See `CountingStep`."""
        self.prepared_bytes(values, check)  # raises for texts that take too long
        return sum(len(one.ids) for one in self._tokenizer.encode(self._texts(values), check))

    def _make(
        self,
        role: str,
        encoded: Sequence[Ids],
        used: NDArray[np.bool_],
        places: NDArray[np.int64],
    ) -> Array:
        if role == MASK:
            return used
        if role == POSITIONS:
            return np.where(used, places, 0)
        value = self._tokenizer.pad_id if role == IDS else self._tokenizer.pad_type
        made = np.full(used.shape, value, np.int64)
        rows = [one.ids if role == IDS else one.type_ids for one in encoded]
        made[used] = [number for row in rows for number in row]
        return made

    def _check_even(self, lengths: Sequence[int]) -> None:
        for row, (one, other) in enumerate(pairwise(lengths), 1):
            if one != other:
                raise InvalidInput(
                    f"input {quoted(self.spec.name)}: rows {row - 1} and {row} have {one} and "
                    f"{other} ids, and padding changes this model's answers. Send texts with "
                    "different numbers of ids in separate requests"
                )

    def _texts(self, values: Array) -> list[Text]:
        if values.dtype != np.object_:  # at least one is not UTF-8
            values = self._decoded(values)
        if not self._pairs:
            return values.tolist()  # type: ignore[no-any-return]
        return [(first, second) for first, second in values.tolist()]

    def _decoded(self, values: Array) -> Array:
        texts = np.empty(values.shape, np.object_)
        for place, one in enumerate(values.flat):
            try:
                texts.flat[place] = one.tobytes().decode()
            except UnicodeDecodeError:
                row = place // (2 if self._pairs else 1)
                raise self._wrong(row, "is not UTF-8") from None
        return texts

    def _wrong(self, row: int, sentence: str) -> InvalidInput:
        return InvalidInput(f"input {quoted(self.spec.name)}, row {row} {sentence}")

    # -- loads

    def try_out(self, run: RunFeeds) -> None:
        """Check whether padding, next to a longer text, changes the outputs of a text.

        If it does, all texts of one request must have the same number of ids.
        """
        if self._length is not None or not self._masked:
            return
        texts: list[Any] = [(one, SAID[1]) for one in SAID] if self._pairs else list(SAID)
        both = np.empty((2, 2) if self._pairs else 2, np.object_)
        both[:] = texts
        together, alone = self._tried(run, both), self._tried(run, both[:1])
        self._masked = all(map(_same, together, alone))

    def _tried(self, run: RunFeeds, values: Array) -> list[Array]:
        try:
            return list(run(self.prepare(values, lambda: None)))
        except RunRefused as error:
            raise RunRefused(
                f"the model rejects the tokenizer's output for {quoted(SAID[0])}: {error}"
            ) from error


def _same(together: Array, alone: Array) -> bool:
    """Return True if an output of a row equals the output of the row alone, within rounding.

    Also returns True if the output has no rows to compare.
    """
    if together.ndim != alone.ndim or not alone.ndim or len(together) != 2 or len(alone) != 1:
        return True  # it has no rows; other checks report that
    inside = together[:1][tuple(slice(size) for size in alone.shape)]
    if inside.shape != alone.shape:
        return False
    if alone.dtype.kind not in "fiub":
        return bool(np.array_equal(inside, alone))
    one, other = inside.astype(np.float64), alone.astype(np.float64)
    bound = ROUNDING + SAME * float(np.abs(other).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=0, atol=bound, equal_nan=True))


def _model_inputs(context: StepContext) -> list[tuple[TensorSpec, str]]:
    """Return the model's inputs that are made from text, with their roles. Raises LoadFailed."""
    found = [(spec, ROLES[name]) for name, spec in context.inputs.items() if name in ROLES]
    own = context.inputs.get(context.name)
    if own is not None and own.datatype in {"INT64", "INT32"} and context.name not in ROLES:
        found.append((own, IDS))
        own = None
    if [role for _, role in found].count(IDS) != 1:
        raise context.problem(
            f"the model has no input_ids, which a tokenizer makes, but {', '.join(context.inputs)}"
        )
    if own is not None and context.name not in [spec.name for spec, _ in found]:
        raise context.problem(
            "the model has an input of this name: choose another name for the text"
        )
    for spec, role in found:
        allowed = ("INT64", "INT32", *(("BOOL", "FP32", "FP16") if role == MASK else ()))
        if spec.datatype not in allowed or (spec.shape is not None and len(spec.shape) != 2):
            raise context.problem(
                f"the model's {spec.name} is {spec.datatype} {spec.shape_text}, and a tokenizer "
                f"makes {' or '.join(allowed)} [N, length]"
            )
    return found


def _fixed_length(context: StepContext, inputs: Sequence[tuple[TensorSpec, str]]) -> int | None:
    """Return the fixed number of ids that the model accepts, or None. Raises LoadFailed."""
    lengths = {
        spec.name: spec.shape[1] for spec, _ in inputs if spec.shape and type(spec.shape[1]) is int
    }
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise context.problem(f"the model's inputs of text differ in their lengths: {shown}")
    return next((length for length in lengths.values() if type(length) is int), None)
