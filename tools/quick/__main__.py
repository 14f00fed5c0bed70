"""`python -m tools.quick`: check what differs from a commit, and run the tests that it needs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from time import monotonic

from tools import ROOT
from tools.quick.checks import Check, find_checks, find_unchecked, pytest_command
from tools.quick.selection import select_tests


def main() -> int:
    """Return 0 if all checks and tests pass. Tests do not run if a check fails."""
    parser = argparse.ArgumentParser(prog="make quick", description=__doc__)
    parser.add_argument(
        "--base", help="a commit or branch; default: HEAD, or HEAD~1 without changes"
    )
    parser.add_argument("--package", help="as if all of this package of cohort had changed")
    parser.add_argument("--list", action="store_true", help="list the tests, and run nothing")
    options = parser.parse_args()
    started = monotonic()
    try:
        changed = _find_changed(options.package, options.base)
    except ValueError as error:
        parser.error(str(error))
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("app", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
    }
    tests = select_tests(changed, sources)
    if options.list:
        print(*tests, sep="\n")
        return 0
    there = [path for path in changed if (ROOT / path).exists()]
    print(f"cohort: {len(changed)} changed files, {len(tests)} test modules", flush=True)
    failed = [check.name for check in find_checks(there) if not _passes(check)]
    if failed and tests:
        print("cohort: the tests did not run, since a check failed")
    elif tests and not _passes(pytest_command(tests)):
        failed.append("pytest")
    if unchecked := find_unchecked(there):
        print(f"cohort: nothing here checks {', '.join(unchecked)}: `make test` may")
    print(f"cohort: {', '.join(failed) or 'nothing'} failed, {monotonic() - started:.0f} s")
    return int(bool(failed))


def _find_changed(package: str | None, base: str | None) -> list[str]:
    """Return the paths of changed files, those that are gone included. Raises ValueError."""
    if package:
        found = _git("ls-files", f"app/cohort/{package}", f"app/cohort/{package}.py")
        if not found:
            raise ValueError(f"there is no package {package} in app/cohort")
        return found
    if base:
        return _differing(_git("merge-base", base, "HEAD")[0])
    if found := _differing("HEAD"):
        return found
    print("cohort: nothing differs from HEAD, so this is what HEAD changed", flush=True)
    return _differing("HEAD~1")


def _differing(base: str) -> list[str]:
    """List the files that differ from `base`, new ones that git does not ignore included."""
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*_git("diff", "--name-only", "--no-renames", base), *untracked})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"git {arguments[0]} failed")
    return done.stdout.splitlines()


def _passes(check: Check) -> bool:
    return not subprocess.run(check.command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
