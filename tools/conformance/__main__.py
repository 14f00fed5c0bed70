"""Send the whole suite to a server, and write docs/reports/conformance.md."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tools import ROOT
from tools.conformance.exceptions import judge, read_exceptions, unknown
from tools.conformance.report import LEAST, Run, page, too_few
from tools.conformance.running import over_the_wire, problem_in_process
from tools.conformance.suite import cases

PAGE = ROOT / "docs" / "reports" / "conformance.md"


def main() -> int:
    """Run every case; return 1 if a result differs from the list of exceptions."""
    every = cases()
    passing = [case for case in every if not problem_in_process(case)]
    asked = [case for case in passing if case.only_tensors]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(every, passing, list(over_the_wire(asked, Path(folder))))
    exceptions = read_exceptions()
    text = page(run, exceptions)
    wrong = [
        *judge(run.results, exceptions),
        *unknown(exceptions, [case.name for case in asked], LEAST),
        *too_few(run),
    ]
    sys.stdout.write(text)
    sys.stderr.writelines(f"conformance: {line}\n" for line in wrong)
    if not wrong:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
