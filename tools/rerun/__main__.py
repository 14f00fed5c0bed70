"""`python -m tools.rerun FOLDER`: run the failed tests that FOLDER records once more, alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.rerun.recording import Record

MAX_FLAKY = 3
"""The number of tests that may fail at first and pass alone; more of them fail the run."""


def reason_to_stop(records: Sequence[Record]) -> str:
    """Say why the run fails whatever its failed tests do alone; empty if that matters."""
    if not records:
        return "no run of pytest was recorded"
    for record in records:
        if record.exit_status not in (0, 1):
            return f"pytest ended with status {record.exit_status}"
        if record.exit_status and not record.failed:
            return "pytest failed, and no test did"
    count = sum(len(record.failed) for record in records)
    return f"{count} tests failed; at most {MAX_FLAKY} run again" if count > MAX_FLAKY else ""


def main(folder: Path, flaky_file: Path) -> int:
    """Run failed tests again and write `flaky_file`; return the exit status."""
    records = [Record.read(path) for path in sorted(folder.glob("*.json"))]
    if reason := reason_to_stop(records):
        print(f"cohort: {reason}")
        return 1
    flaky: dict[str, str] = {}
    failed_twice: list[str] = []
    for record in records:
        for test, report in record.failed.items():
            print(f"cohort: running {test} again, alone", flush=True)
            again = subprocess.run([record.python, "-m", "pytest", "-q", test], check=False)
            if again.returncode:
                failed_twice.append(test)
            else:
                flaky[test] = report
    flaky_file.parent.mkdir(parents=True, exist_ok=True)
    flaky_file.write_text(json.dumps(flaky, indent=1))
    for test in flaky:
        print(f"cohort: flaky: {test} failed, then passed alone")
    if flaky or failed_twice:
        passed = sum(record.passed for record in records) + len(flaky)
        skipped = sum(record.skipped for record in records)
        print(f"{passed} passed, {len(failed_twice)} failed, {skipped} skipped")
    return int(bool(failed_twice))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path("build/flaky.json")))
