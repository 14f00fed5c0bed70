"""A target with a planted fault, to test the fuzzing itself."""

from __future__ import annotations

SEEDS = [b"good"]
TOKENS = (b"bad",)


def check(data: bytes) -> None:
    """Fail if the data contains the word."""
    if b"bad" in data:
        raise ZeroDivisionError
