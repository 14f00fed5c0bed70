"""Requests that a shadow answered differently, kept for an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cohort.comparing import OutputDifference
from cohort.tensors import Array, Arrays

MAX_KEPT_BYTES = 65_536
"""Larger arrays are left out of kept examples."""


@dataclass(frozen=True, slots=True)
class ShadowExample:
    """A request on which the shadow disagreed.

    at: The date and time, in UTC and ISO 8601.
    inputs: The request's inputs.
    answered: The outputs that the caller received.
    shadow: The shadow's outputs; None if it failed.
    differences: The differences by output; empty if the shadow failed.
    failure: The shadow's error; empty if it did not fail.
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
        """Make an example with copies of the arrays, which are views of a whole batch's arrays.

        The parameters are the fields of the class.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        theirs = None if shadow is None else _copied(shadow)
        return cls(at, _copied(arrays), _copied(answered), theirs, differences, failure)

    def describe(self, redact: Sequence[str]) -> dict[str, Any]:
        """Return plain values for JSON, without inputs and outputs in `redact`.

        If `redact` is not empty, the failure is also left out: it may contain a value.
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
    """Return nested lists for JSON; NaN and infinity, which it cannot write, as text."""
    if array.dtype.type in {np.object_, np.void}:
        text = [str(one) for one in array.reshape(-1)]
        return np.array(text, np.object_).reshape(array.shape).tolist()
    if array.dtype.kind in "biu":
        return array.tolist()
    numbers = array.astype(np.float64)
    if np.isfinite(numbers).all():
        return numbers.tolist()
    return np.array([str(one) for one in numbers.reshape(-1)]).reshape(array.shape).tolist()
