"""`python -m tools.quick`: check what differs from a commit, and run the tests that it needs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from tools import ROOT
from tools.quick.selection import select_tests

RUFF, MYPY = (str(Path(sys.executable).parent / name) for name in ("ruff", "mypy"))


def main() -> int:
    """Return 0 if all checks and tests pass."""
    parser = argparse.ArgumentParser(prog="make quick", description=__doc__)
    parser.add_argument("--base", help="a commit; by default HEAD, or HEAD~1 if nothing changed")
    parser.add_argument("--package", help="as if all of this package of app had changed")
    parser.add_argument("--list", action="store_true", help="list the tests, and run nothing")
    options = parser.parse_args()
    started = monotonic()
    if options.package:
        changed = _git("ls-files", f"app/{options.package}", f"app/{options.package}.py")
        if not changed:
            parser.error(f"there is no package {options.package} in app")
    else:
        changed = _changed(options.base) if options.base else _changed("HEAD") or _changed("HEAD~1")
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("app", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
    }
    tests = select_tests(changed, sources)
    if options.list:
        print(*tests, sep="\n")
        return 0
    python = [path for path in changed if path.endswith(".py") and (ROOT / path).exists()]
    print(f"cohort: {len(changed)} changed files, {len(tests)} test modules", flush=True)
    failed = [command[0] for command in _commands(python, tests) if _run(command)]
    print(f"cohort: {', '.join(failed) or 'nothing'} failed, {monotonic() - started:.0f} s")
    return int(bool(failed))


def _commands(python: Sequence[str], tests: Sequence[str]) -> list[list[str]]:
    commands = []
    if python:
        commands += [[RUFF, "check", "--force-exclude", *python]]
        commands += [[RUFF, "format", "--check", "--force-exclude", *python]]
        commands += [[MYPY, *python]]
    if tests:
        parallel = ["-n", "auto", "--dist", "worksteal"]
        commands += [[sys.executable, "-m", "pytest", "-q", *parallel, *tests]]
    return commands


def _run(command: Sequence[str]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _changed(base: str) -> list[str]:
    """List the files that differ from `base`, new ones that git does not ignore included."""
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*_git("diff", "--name-only", "--no-renames", base), *untracked})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
