"""`cohort`, whose process writes on SIGUSR2 how many blocks of memory its Python objects have.

Tests start this program instead of `python -m cohort`; the number goes to the file that BLOCKS_FILE
names.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from pathlib import Path

from cohort.cli import main
from tests.e2e.processes import Cohort
from tests.waiting import wait_until

PROGRAM = (sys.executable, "-m", "tests.e2e.counted")


def blocks(server: Cohort, file: Path) -> int:
    """The blocks that the process has allocated once all garbage is collected."""
    file.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR2)
    return int(wait_until(lambda: file.read_text() if file.exists() else ""))


def check_blocks(server: Cohort, file: Path, *, most: int) -> None:
    """Fail unless the process has at most `most` blocks, once its connections have ended."""
    counts: list[int] = []

    def few() -> bool:
        counts.append(blocks(server, file))
        return counts[-1] <= most

    try:
        wait_until(few)
    except TimeoutError:
        raise AssertionError(f"{min(counts):,} blocks, and not {most:,} at most") from None


def memory(server: Cohort) -> int:
    """The bytes it has in memory that are its own."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0])


def descriptors(server: Cohort) -> int:
    """Return how many files and connections it has open."""
    return len([*Path(f"/proc/{server.process.pid}/fd").iterdir()])


def _write(*_: object) -> None:
    file = Path(os.environ["BLOCKS_FILE"])
    gc.collect()
    count = sys.getallocatedblocks()
    new = file.with_suffix(".new")
    new.write_text(str(count))
    new.replace(file)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _write)
    main()
