"""What quantizes and measures: `python -m cohort_prepare.quantizing.process JOB OUT`."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

from cohort_prepare.quantizing.work import do_quantize_job


def _confine() -> None:
    """Leave no core, and be the first to go for want of memory, where the system knows it."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    _confine()
    do_quantize_job(Path(sys.argv[1]), Path(sys.argv[2]))
