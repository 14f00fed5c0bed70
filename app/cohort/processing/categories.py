"""`inputs.<name>.categories`: words or numbers that are converted to codes for the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isnan, nan
from typing import Any

import numpy as np

from cohort.errors import InvalidInput, did_you_mean, quoted, quoted_names
from cohort.processing.features import Features, check_text
from cohort.processing.outputs import read_labels
from cohort.processing.steps import Check, StepContext
from cohort.tensors import Array, Arrays, TensorSpec

FEW_WORDS = 256
"""Maximum words to look up on the event loop, which takes less than 0.1 ms."""

WORDS_AT_ONCE = 1 << 14

GAP = ""
"""The word for null and for an empty cell, if the model has a code for a missing value."""


class CategoryStep:
    """A conversion of words or numbers to codes, or to a column of 0 and 1 per category.

    Implements `Step`. Raises LoadFailed if the config does not fit the model.
    """

    def __init__(self, context: StepContext) -> None:
        config = context.config
        self._name = context.name
        self._words = _words(context)
        self._one_hot = config.one_hot
        parts = [str(word) for word in self._words] if config.one_hot else [""]
        # pandas' get_dummies may leave the first category without a column
        self._features = Features(context, parts, parts[:1] if config.one_hot else ())
        self._codes: dict[Any, float] = {word: code for code, word in enumerate(self._words)}
        last = len(self._words) - 1  # the first whole number that floats lack is odd
        if not config.one_hot and not all(map(self._features.holds, (last, max(last - 1, 0)))):
            datatype = self._features.specs[0].datatype
            raise context.problem(
                f"{len(self._words)} categories, but the model expects {datatype}"
            )
        gap = -1.0 if config.one_hot else nan if self._features.takes_nan else None
        self._gap = gap if config.missing is None else self._code(context, "missing")
        self._unknown = None if config.unknown is None else self._code(context, "unknown")
        self.spec = self._spec()
        self.fills: Sequence[str] = self._features.fills
        self.example: Array = np.array([self._words[0]] * _fixed(self.spec), self.spec.dtype)
        self.description = self._describe()

    def _spec(self) -> TensorSpec:
        if not isinstance(self._words[0], str):
            missing = None if self._gap is None else nan
            return TensorSpec(self._name, "FP64", (self._features.rows,), missing=missing)
        gap = GAP if self._gap is not None and GAP not in self._codes else None
        return TensorSpec(self._name, "BYTES", (self._features.rows,), missing=gap)

    def _code(self, context: StepContext, key: str) -> float:
        """Return the code for missing or unknown words: the code of a category, or a number.

        Raises LoadFailed.
        """
        value = getattr(context.config, key)
        if value in self._codes:
            return self._codes[value]
        if value == "nan" and self._one_hot:
            return -1.0
        if isinstance(value, str) and value != "nan":
            raise context.problem(f"{key}: {quoted(value)} is not one of its categories")
        code = float(value)
        if self._one_hot:
            raise context.problem(f"{key}: with one_hot it must be one of its categories, or nan")
        whole = code.is_integer()
        if not (self._features.holds(code) if whole else self._features.takes_nan):
            datatype = self._features.specs[0].datatype
            raise context.problem(f"{key} is {code:g}, but the model expects {datatype}")
        return code

    def _describe(self) -> str:
        few = quoted_names(map(str, self._words))
        made = "columns of 0 and 1" if self._one_hot else f"codes from 0 to {len(self._words) - 1}"
        other = "" if self._unknown is None else ", or any other"
        return f"one of {few}{other}, sent to the model as {made}"

    def is_short(self, values: Array) -> bool:
        """Return True if there are few rows."""
        return values.size * (self._features.width if self._one_hot else 1) <= FEW_WORDS

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """Return the bytes of the codes and of the model's inputs. Raises InvalidInput."""
        del check
        return 40 * values.size + self._features.size(values.size)

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Return the model's inputs. Raises InvalidInput for an unknown word."""
        check_text(values, self._name)
        codes = np.empty(values.size, np.float64)
        for start in range(0, values.size, WORDS_AT_ONCE):
            check()
            part = values[start : start + WORDS_AT_ONCE].tolist()
            found = [*map(self._codes.get, part)]
            if None in found:
                found = [
                    self._other(word, start + row) if code is None else code
                    for row, (word, code) in enumerate(zip(part, found, strict=True))
                ]
            codes[start : start + len(part)] = found
        return self._features.one_hot(codes) if self._one_hot else self._features.fill(codes)

    def _other(self, word: Any, row: int) -> float:
        """Return the code of a missing or unknown word. Raises InvalidInput if there is no code."""
        gap = word == GAP if isinstance(word, str) else isnan(word)
        if gap and self._gap is not None:
            return self._gap
        if self._unknown is not None:
            return self._unknown
        shown = quoted(str(word), 40) if isinstance(word, str) else f"{word:g}"
        known = [str(one) for one in self._words]
        raise InvalidInput(
            f"input {quoted(self._name)} row {row}: {shown} is not one of its {len(known)} "
            f"categories: {quoted_names(known)}{_hint(str(word), known)}"
        )

    def undo(self, arrays: Arrays) -> Array | None:
        """Return the words [N] for the model's inputs; None if they cannot be converted back."""
        if self._one_hot or any(name not in arrays for name in self.fills):
            return None
        words = []
        for code in arrays[self.fills[0]].reshape(-1).astype(np.float64).tolist():
            if isnan(code) and self._gap is not None and self.spec.missing is not None:
                words.append(self.spec.missing)
            elif 0 <= code < len(self._words) and code.is_integer():
                words.append(self._words[int(code)])
            else:
                return None
        made = np.empty(len(words), self.spec.dtype)
        made[:] = words
        return made


def _hint(word: str, known: Sequence[str]) -> str:
    hint = did_you_mean(word, known)
    return hint if hint.startswith("; did") else ""


def _fixed(spec: TensorSpec) -> int:
    rows = spec.shape[0] if spec.shape else 1
    return rows if isinstance(rows, int) else 1


def _words(context: StepContext) -> Sequence[str] | Sequence[float]:
    """Return the categories in code order: all words or all numbers. Raises LoadFailed."""
    given = context.config.categories
    assert given is not None  # noqa: S101 - the step requires this key
    if isinstance(given, str):
        given = tuple(read_labels(f"inputs.{context.name}.categories", context.folder, given))
    if not given:
        raise context.problem("categories: the list is empty")
    texts = [one for one in given if isinstance(one, str)]
    words: Sequence[str] | Sequence[float] = texts
    if len(texts) != len(given):
        if texts:
            raise context.problem("categories: must be all words or all numbers")
        words = [float(one) for one in given]
    word, times = Counter(words).most_common(1)[0]
    if times > 1:
        raise context.problem(f"categories: {quoted(str(word))} is listed twice")
    return words
