"""How many files, and so connections, the process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

RESERVED_FILES = 256
"""Open files kept for models, logs and gRPC; and a tenth of the limit where that is more."""

MOST_FILES = 1 << 20
"""The limit of open files is raised up to here at most."""


def available_connections() -> int:
    """How many connections the limit of open files leaves, after raising it as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = MOST_FILES
    return max(soft - max(RESERVED_FILES, soft // 10), soft // 2, 1)
