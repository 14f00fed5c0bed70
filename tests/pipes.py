"""Pipes that take no more."""

from __future__ import annotations

import os


def fill(pipe: int, with_: bytes) -> None:
    """Write the one byte `with_` until the pipe takes no more. Its other users may not write."""
    os.set_blocking(pipe, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(pipe, with_ * size)
        except BlockingIOError:
            pass
    os.set_blocking(pipe, True)
