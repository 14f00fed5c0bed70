"""Run a server that reports how many tasks it has.

`python -m tools.soak.counted FILE PYTHON -m app serve` runs `PYTHON -m app serve` in this process.
On SIGUSR2 it writes the number of the event loop's tasks to FILE.
"""

from __future__ import annotations

import asyncio
import runpy
import signal
import sys
from pathlib import Path


def main(file: Path, module: str, arguments: list[str]) -> None:
    """Run `module` as a program with these arguments."""

    def write(*_: object) -> None:
        new = file.with_suffix(".new")
        new.write_text(str(len(asyncio.all_tasks())))
        new.rename(file)

    signal.signal(signal.SIGUSR2, write)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[4], sys.argv[5:])
