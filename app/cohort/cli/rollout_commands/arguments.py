"""Parse the arguments of `cohort rollout set`."""

from __future__ import annotations

from math import isfinite, nan

import rich_click as click


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Split VARIANT=NUMBER arguments into a dict by variant. Raises BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise click.BadParameter(f"must be VARIANT=NUMBER, got {text!r}")
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice: {name}={pairs[name]} and {text}")
        pairs[name] = value
    return pairs


def parse_weight(text: str) -> float:
    """Parse a weight without its percent sign. Raises BadParameter."""
    try:
        weight = float(text) if text.isascii() and "_" not in text else nan
    except ValueError:
        weight = nan
    if not isfinite(weight):
        raise click.BadParameter(f"a weight must be a finite number, got {text!r}")
    return weight


def parse_version(text: str) -> int:
    """Parse a version number. Raises BadParameter."""
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"a version must be a positive integer, got {text!r}")
    return int(text)
