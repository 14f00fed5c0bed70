"""Requests that a shadow answered differently, kept for an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from app.comparing import OutputDifference
from app.tensors import Array, Arrays

MAX_KEPT_BYTES = 65_536
"""An array of a kept example that is larger is left out."""


@dataclass(frozen=True, slots=True)
class ShadowExample:
    """A request, what was answered, and what the shadow gave: None where it failed.

    `at` is a time of day in ISO 8601; `failure` is the shadow's error, "" where it answered.
    """

    at: str
    inputs: Arrays
    answered: Arrays
    shadow: Arrays | None
    differences: Sequence[OutputDifference]
    failure: str

    @classmethod
    def capture(
        cls,
        arrays: Arrays,
        answered: Mapping[str, Array],
        shadow: Mapping[str, Array] | None,
        differences: Sequence[OutputDifference],
        failure: str,
    ) -> ShadowExample:
        """Make one of copies: outputs are views of a whole batch's arrays."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        theirs = None if shadow is None else _copied(shadow)
        return cls(at, _copied(arrays), _copied(answered), theirs, differences, failure)

    def describe(self, redact: Sequence[str]) -> dict[str, Any]:
        """Plain values, ready to be written as JSON; those of inputs and outputs in `redact` not.

        With anything to redact, a failure is, too: its message may hold a value.
        """

        def plain(arrays: Mapping[str, Array]) -> dict[str, Any]:
            return {
                name: "redacted" if name in redact else _plain(array)
                for name, array in arrays.items()
            }

        return {
            "at": self.at,
            "inputs": plain(self.inputs),
            "answered": plain(self.answered),
            "shadow": None if self.shadow is None else plain(self.shadow),
            "failure": "redacted" if self.failure and redact else self.failure,
            "disagrees": [one.output for one in self.differences if one.disagrees],
        }


def _copied(arrays: Mapping[str, Array]) -> Arrays:
    return {
        name: array.copy() if array.nbytes <= MAX_KEPT_BYTES else _TOO_LARGE
        for name, array in arrays.items()
    }


_TOO_LARGE: Array = np.array("too large to keep", np.object_)


def _plain(array: Array) -> Any:
    """Nested lists for JSON; NaN and infinity, which it cannot write, as text."""
    if array.dtype.kind == "O":
        text = [str(one) for one in array.reshape(-1)]
        return np.array(text, np.object_).reshape(array.shape).tolist()
    if array.dtype.kind in "biu":
        return array.tolist()
    numbers = array.astype(np.float64)
    if np.isfinite(numbers).all():
        return numbers.tolist()
    return np.array([str(one) for one in numbers.reshape(-1)]).reshape(array.shape).tolist()
