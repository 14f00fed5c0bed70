"""Log lines of a process that uses little more than the standard library."""

from __future__ import annotations

import json
import os
import select
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

STDERR = 2

LineLevel = Literal["info", "warning", "error", "critical"]


def write_line(log_format: str, level: LineLevel, event: str, **facts: object) -> None:
    """Write a line to standard error; it is lost if the pipe is full.

    log_format: "json" or text.
    """
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if log_format == "json":
        line = json.dumps({"event": event, "level": level, **facts, "timestamp": now})
    else:
        line = " ".join([event, *(f"{name}={value}" for name, value in facts.items())])
    with suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:  # a pipe then accepts PIPE_BUF bytes at once
            os.write(STDERR, line.encode() + b"\n")
