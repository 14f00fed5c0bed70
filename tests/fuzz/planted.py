"""A target that fails, by which the fuzzing itself is tried."""

from __future__ import annotations

SEEDS = [b"good"]
TOKENS = (b"bad",)


def check(data: bytes) -> None:
    """Fail for what has the word in it."""
    if b"bad" in data:
        raise ZeroDivisionError
