"""Limits of JSON schemas whose states llguidance does not count.

It builds the states of a divisor, and those of expressions that one text must match together,
before it counts its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import isnan, lcm
from typing import Any

MAX_DIVISOR = 10_000
"""Maximum of the least common multiple of all `multipleOf`, as digits without a decimal point."""

MAX_JOINED = 8
"""Maximum expressions and formats in a schema that joins schemas."""

JOINING = ("$ref", "anyOf", "oneOf")


def excess(schema: object) -> str:
    """Return what a parsed schema has too much of; "" if nothing."""
    divisor, expressions, joins = 1, 0, False
    for one in _objects(schema):
        divisor = lcm(divisor, _digits(one.get("multipleOf")))
        if divisor > MAX_DIVISOR:
            return f"its multipleOf need a common multiple with digits above {MAX_DIVISOR}"
        own = isinstance(one.get("pattern"), str) + isinstance(one.get("format"), str)
        expressions += own
        joins |= "allOf" in one or (own > 1 or (own > 0 and any(key in one for key in JOINING)))
    if joins and expressions > MAX_JOINED:
        return f"it joins schemas by allOf, and has more than {MAX_JOINED} patterns and formats"
    return ""


def _objects(schema: object) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a parsed JSON document."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def _digits(value: object) -> int:
    """Return the digits of a number as a whole number; 1 for other values, which are refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value or isnan(value):
        return 1
    if abs(value) > MAX_DIVISOR:
        return MAX_DIVISOR + 1
    return int("".join(map(str, Decimal(repr(value)).normalize().as_tuple().digits)))
