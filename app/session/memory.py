"""Memory that opening a model took and no longer needs, given back to the system.

While ONNX Runtime opens and optimizes a model it has the weights in memory several times, in pieces
that the allocator keeps: 480 MB became 870 MB for ResNet-50 in two sessions, and stayed so.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back_memory() -> None:
    """Let the allocator return the pages it does not need; only glibc's can be asked."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
