"""`python -m tools.rerun STATUS FILE ...`: run the failed tests once more, alone.

STATUS is the exit status of `make test`, and each FILE the record of a run of pytest that it made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.rerun.recording import Record

MAX_FLAKY = 3
"""The number of tests that may fail at first and pass alone; more of them fail the run."""


def reason_to_stop(status: int, records: Sequence[Record | None]) -> str:
    """Say why the run fails whatever its failed tests do alone; empty if that matters.

    status: The exit status of `make test`.
    records: The result of each run of pytest; None if it recorded nothing.
    """
    for record in records:
        if record is None:
            return "a run of pytest recorded nothing"
        if record.exit_status not in (0, 1):
            return f"pytest ended with status {record.exit_status}"
        if record.left:
            return f"{record.left} tests did not run"
        if record.exit_status and not record.failed:
            return "pytest failed, and no test did"
    count = sum(len(record.failed) for record in records if record)
    if status and not count:
        return "make test failed, and no test did"
    return f"{count} tests failed; at most {MAX_FLAKY} run again" if count > MAX_FLAKY else ""


def main(status: int, paths: Sequence[Path], flaky_file: Path) -> int:
    """Run failed tests again and write `flaky_file`; return the exit status."""
    found = [Record.read(path) if path.exists() else None for path in paths]
    if reason := reason_to_stop(status, found):
        print(f"cohort: {reason}")
        return 1
    records = [record for record in found if record is not None]
    flaky: dict[str, str] = {}
    failed_twice: list[str] = []
    for record in records:
        for test, report in record.failed.items():
            print(f"cohort: running {test} again, alone", flush=True)
            if _passes(record.python, test, flaky_file.parent / "tests" / "again.json"):
                flaky[test] = report
            else:
                failed_twice.append(test)
    flaky_file.parent.mkdir(parents=True, exist_ok=True)
    flaky_file.write_text(json.dumps(flaky, indent=1))
    for test in flaky:
        print(f"cohort: flaky: {test} failed, then passed alone")
    if flaky or failed_twice:
        passed = sum(record.passed for record in records) + len(flaky)
        skipped = sum(record.skipped for record in records)
        print(f"{passed} passed, {len(failed_twice)} failed, {skipped} skipped")
    return int(bool(failed_twice))


def _passes(python: str, test: str, path: Path) -> bool:
    """Return True if a test passes alone: one that is skipped then does not."""
    path.unlink(missing_ok=True)
    recorded = ["-p", "tools.rerun.recording", "--record", str(path)]
    again = subprocess.run([python, "-m", "pytest", "-q", *recorded, test], check=False)
    return not again.returncode and Record.read(path).passed == 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), [*map(Path, sys.argv[2:])], Path("build/flaky.json")))
