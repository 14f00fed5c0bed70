"""Check that the English of the project is plain: `make lint`, or `python -m tools.prose`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools import ROOT
from tools.prose.counts import count, write_table
from tools.prose.exceptions import read_exceptions, without_exceptions
from tools.prose.passages import has_text
from tools.prose.rules import check

EXCEPTIONS = Path(__file__).parent / "exceptions.yaml"


def main() -> int:
    """Return 1 if there is a finding, or an exception that covers nothing."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("files", nargs="*", help="files to check; default: all in the checkout")
    parser.add_argument("--counts", action="store_true", help="print a table of counts by part")
    options = parser.parse_args()
    sources = {path: (ROOT / path).read_text("utf-8") for path in options.files or _list_files()}
    findings = [one for path, source in sources.items() for one in check(path, source)]
    exceptions = read_exceptions(EXCEPTIONS.read_text("utf-8"))
    findings, unused = without_exceptions(findings, exceptions)
    if options.counts:
        print(write_table(count(sources, findings)), end="")
        return 0
    for finding in findings:
        print(finding)
    if options.files:
        return int(bool(findings))
    for each in unused:
        print(f"{EXCEPTIONS.relative_to(ROOT)}: no finding in {each.path} has {each.text!r}")
    return int(bool(findings or unused))


def _list_files() -> list[str]:
    """List the files of the checkout that may contain English, by path from the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [
        path for path in sorted(listed.splitlines()) if has_text(path) and (ROOT / path).is_file()
    ]


if __name__ == "__main__":
    sys.exit(main())
