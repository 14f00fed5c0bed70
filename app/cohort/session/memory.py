"""Memory of sessions: a limit for runs, and release of memory left over from opening.

While ONNX Runtime opens and optimizes a model, it has several copies of the weights in memory. The
allocator keeps their pages: with two sessions of ResNet-50, 480 MB became 870 MB permanently.
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
    """Limit the memory for runs of sessions opened inside with options from `limit_session`.

    A limit belongs to an arena, which ONNX Runtime registers for the whole process. A session keeps
    the arena registered when it was opened, so sessions with a limit are opened one at a time.
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
    """Make a session with these options allocate memory for runs from the limited arena."""
    if megabytes is not None:
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


def limit_provider(provider: Provider, megabytes: int | None) -> dict[str, str]:
    """Return the options of a link; for CUDA, add the limit unless the operator set one."""
    options = provider.ort_options
    if megabytes is not None and provider.name == "cuda":
        options.setdefault("gpu_mem_limit", str(megabytes << 20))
    return options


def give_back_memory() -> None:
    """Make the allocator return unused pages to the system; only glibc supports this."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
