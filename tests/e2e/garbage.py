"""`cohort` without the garbage collector, whose process writes on SIGUSR2 what that would find.

Tests start this program instead of `python -m cohort`; the objects in reference cycles go to the
file that GARBAGE_FILE names, as numbers by type.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from cohort.cli import main
from tests.e2e.processes import Cohort
from tests.waiting import wait_until

PROGRAM = (sys.executable, "-m", "tests.e2e.garbage")


def garbage(server: Cohort, file: Path) -> Counter[str]:
    """Collect the unreachable objects of the process, and return their numbers by type."""
    file.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR2)
    return Counter(json.loads(wait_until(lambda: file.read_text() if file.exists() else "")))


def _write(*_: object) -> None:
    file = Path(os.environ["GARBAGE_FILE"])
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()  # frees them
    new = file.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.replace(file)


if __name__ == "__main__":
    gc.disable()
    signal.signal(signal.SIGUSR2, _write)
    main()
