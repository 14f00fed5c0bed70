"""`python -m tools.release`: compare with the last release, write its snapshot, check a tag."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tools import ROOT
from tools.release.changelog import BREAKING, CHANGELOG, UNRELEASED, section, undeclared
from tools.release.differences import Change, Difference, differences
from tools.release.snapshot import SNAPSHOT, read_snapshot, written_snapshot
from tools.release.surface import Surface, present_surface
from tools.release.versions import Version, parse_version


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--snapshot", type=Path, default=SNAPSHOT, help="default: %(default)s")
    verbs = parser.add_subparsers(required=True, dest="verb")
    verbs.add_parser("compare", help="list the differences from the last release")
    for verb, text in (
        ("snapshot", "write the snapshot of a version, if its number is high enough"),
        ("check", "check that a tagged commit has the snapshot and the changelog of its version"),
    ):
        verbs.add_parser(verb, help=text).add_argument("version", help="1.2.3 or v1.2.3")
    options = parser.parse_args(arguments)
    try:
        last = read_snapshot(options.snapshot.read_text(encoding="utf-8"))
        now = present_surface()
        if options.verb == "compare":
            _compare(last, now)
        elif options.verb == "snapshot":
            _renew(last, now, parse_version(options.version), options.snapshot)
        else:
            _check(last, now, parse_version(options.version), options.snapshot)
    except ValueError as error:
        print(f"cohort: {error}", file=sys.stderr)
        return 1
    return 0


def needed_version(last: Surface, found: Sequence[Difference]) -> Version:
    """Return the lowest version that a release with these differences may have."""
    most = max((one.needs for one in found), default=Change.PATCH)
    return parse_version(last.version).after(most)


def _compare(last: Surface, now: Surface) -> None:
    found = differences(last.groups, now.groups)
    print(*found, sep="\n", end="\n" if found else "")
    print(
        f"cohort: {len(found)} differences from {last.version}: the next version must be at least "
        f"{needed_version(last, found)}"
    )
    changelog = section(CHANGELOG.read_text(encoding="utf-8"), UNRELEASED)
    if missing := undeclared(found, changelog):
        print(f"cohort: CHANGELOG.md must name under '{BREAKING}': {_names(missing)}")


def _names(found: Sequence[Difference]) -> str:
    return ", ".join(f"`{one.name}`" for one in found)


def _renew(last: Surface, now: Surface, version: Version, path: Path) -> None:
    if str(version) != last.version or _tagged(version):
        _check_number(last, now, version)
    text = written_snapshot(replace(now, version=str(version)))
    path.write_text(text, encoding="utf-8")
    print(
        f"cohort: wrote {path}; commit it with '## [{version}]' in CHANGELOG.md, and tag v{version}"
    )


def _check_number(last: Surface, now: Surface, version: Version) -> None:
    found = differences(last.groups, now.groups)
    needed = needed_version(last, found)
    if version < needed:
        reasons = "".join(f"\n  {one}" for one in found[:10])
        raise ValueError(f"{version} is too low after {last.version}: use {needed}{reasons}")


def _check(last: Surface, now: Surface, version: Version, path: Path) -> None:
    verb = f"make release-snapshot VERSION={version}"
    if last.version != str(version):
        raise ValueError(f"the snapshot is of {last.version}: run {verb}, commit, and tag again")
    if found := differences(last.groups, now.groups):
        raise ValueError(f"the snapshot is out of date ({found[0]}): run {verb} and tag again")
    changes = section(CHANGELOG.read_text(encoding="utf-8"), str(version))
    if not changes:
        raise ValueError(f"CHANGELOG.md has no section '## [{version}]'")
    former = _former(path, version)
    if former is not None:
        _check_number(former, now, version)
        if missing := undeclared(differences(former.groups, now.groups), changes):
            raise ValueError(f"CHANGELOG.md must name under '{BREAKING}': {_names(missing)}")
    print(f"cohort: {version} follows {former.version if former else 'no release'}")


def _former(path: Path, version: Version) -> Surface | None:
    """Return the surface of the release before this one, from git; None if there is none."""
    tags = _git("tag", "--merged", "HEAD", "--list", "v[0-9]*").split()
    versions = []
    for tag in tags:
        try:
            versions.append(parse_version(tag))
        except ValueError:
            continue
    former = max((one for one in versions if one < version), default=None)
    if former is None:
        return None
    name = path.resolve().relative_to(ROOT)
    return read_snapshot(_git("show", f"v{former}:{name}"))


def _tagged(version: Version) -> bool:
    return bool(_git("tag", "--list", f"v{version}"))


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"git {arguments[0]} failed")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
