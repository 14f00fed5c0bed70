"""Check that the English of the project is plain: `make lint`, or `python -m tools.prose`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools import ROOT
from tools.prose.allowances import (
    lower_budget,
    over_budget,
    read_budget,
    read_exceptions,
    without_exceptions,
    write_budget,
)
from tools.prose.counts import count, write_table
from tools.prose.passages import has_text
from tools.prose.rules import check

BUDGET = Path(__file__).parent / "budget.txt"
EXCEPTIONS = Path(__file__).parent / "exceptions.yaml"


def main() -> int:
    """Return 1 if a file has more findings than its budget, or an exception covers nothing."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("files", nargs="*", help="files to check; default: all in the checkout")
    parser.add_argument("--all", action="store_true", help="print all findings, within budgets too")
    parser.add_argument("--update", action="store_true", help="lower the budgets to the findings")
    parser.add_argument("--counts", action="store_true", help="print a table of counts by part")
    options = parser.parse_args()
    if options.update and options.files:
        parser.error("--update reads all files")
    sources = {path: (ROOT / path).read_text("utf-8") for path in options.files or _list_files()}
    findings = [one for path, source in sources.items() for one in check(path, source)]
    exceptions = read_exceptions(EXCEPTIONS.read_text("utf-8"))
    findings, unused = without_exceptions(findings, exceptions)
    if options.counts:
        print(write_table(count(sources, findings)), end="")
        return 0
    budget = {} if options.all else read_budget(BUDGET.read_text("utf-8"))
    if options.update:
        try:
            budget = lower_budget(budget, findings, sources)
        except ValueError as error:
            sys.exit(f"cohort: {error}")
        BUDGET.write_text(write_budget(budget), "utf-8")
    over = over_budget(findings, budget)
    for finding in over:
        print(finding)
    if over and not options.all:
        allowed = sum(budget.get(path, 0) for path in {one.path for one in over})
        print(f"cohort: {len(over)} findings in files that may have {allowed}", file=sys.stderr)
    if options.files:
        return int(bool(over))
    for each in unused:
        print(f"{EXCEPTIONS.relative_to(ROOT)}: no finding in {each.path} has {each.text!r}")
    if len(findings) < sum(budget.values()):
        print("cohort: fewer findings than before: python -m tools.prose --update", file=sys.stderr)
    return int(bool(over or unused))


def _list_files() -> list[str]:
    """List the files of the checkout that may contain English, by path from the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [
        path for path in sorted(listed.splitlines()) if has_text(path) and (ROOT / path).is_file()
    ]


if __name__ == "__main__":
    sys.exit(main())
