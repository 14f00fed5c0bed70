"""Memory of sessions: what runs may take, and what opening one took and no longer needs.

While ONNX Runtime opens and optimizes a model it has the weights in memory several times, in pieces
that the allocator keeps: 480 MB became 870 MB for ResNet-50 in two sessions, and stayed so.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cohort.session.providers import Provider
from cohort.session.runtime import ort

_registering = threading.Lock()

_SAME_AS_REQUESTED = 1
_DEFAULT = -1


@contextmanager
def limited_memory(megabytes: int | None) -> Iterator[None]:
    """Give sessions that are opened inside, by options of `limit_session`, that much for runs.

    A limit belongs to an arena, which ONNX Runtime takes from the process: a session keeps the one
    that was registered when it was opened. So sessions with a limit are opened one by one.
    """
    if megabytes is None:
        yield
        return
    with _registering:
        where = ort.OrtMemoryInfo(
            "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
        )
        arena = ort.OrtArenaCfg(megabytes << 20, _SAME_AS_REQUESTED, _DEFAULT, _DEFAULT)
        ort.create_and_register_allocator(where, arena)
        yield


def limit_session(options: Any, megabytes: int | None) -> None:
    """Let a session of these options take its memory for runs from the limited arena."""
    if megabytes is not None:
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


def limit_provider(provider: Provider, megabytes: int | None) -> dict[str, str]:
    """The options of a link, with the limit where it is CUDA and the operator gave none."""
    options = provider.ort_options
    if megabytes is not None and provider.name == "cuda":
        options.setdefault("gpu_mem_limit", str(megabytes << 20))
    return options


def give_back_memory() -> None:
    """Let the allocator return the pages it does not need; only glibc's can be asked."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
