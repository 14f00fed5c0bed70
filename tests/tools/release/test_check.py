"""A tagged commit is released only with the number and the changelog that its changes need."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.working_copy import copy_working_tree
from tools.release.snapshot import read_snapshot, written_snapshot
from tools.release.surface import present_surface

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")


def test_a_tag_is_checked_against_the_release_before_it(tmp_path: Path) -> None:
    """In a clone whose last release had one more setting, which is removed now."""
    copy_working_tree(tmp_path)
    snapshot, changelog = tmp_path / "tools/release/snapshot.json", tmp_path / "CHANGELOG.md"
    now = present_surface()
    former = dict(now.groups["settings"]) | {"COHORT_FORMER": {"required": False}}
    last = replace(now, version="0.3.0", groups={**now.groups, "settings": former})

    def release(version: str, snapshot_text: str, changes: str) -> subprocess.CompletedProcess[str]:
        snapshot.write_text(snapshot_text)
        changelog.write_text(f"# Changelog\n\n## [{version}]\n\n{changes}")
        for command in (("add", "-A"), ("commit", "-q", "-m", version), ("tag", f"v{version}")):
            subprocess.run([*GIT, *command], cwd=tmp_path, check=True)
        return subprocess.run(
            [sys.executable, "-m", "tools.release", "check", f"v{version}"],
            cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "app:."},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    subprocess.run([*GIT, "init", "-q"], cwd=tmp_path, check=True)
    done = release("0.3.0", written_snapshot(last), "First.\n")
    assert "the snapshot is out of date (major: settings: COHORT_FORMER was removed)" in done.stderr

    done = release("0.3.1", written_snapshot(replace(now, version="0.3.1")), "Small.\n")
    assert done.returncode == 1
    assert "0.3.1 is too low after 0.3.0: use 0.4.0" in done.stderr

    for version, changes, code in (
        ("0.4.0", "### Added\n\n- `COHORT_FORMER` is gone.\n", 1),
        ("0.5.0", "### Breaking\n\n- `COHORT_FORMER` is gone.\n", 0),
    ):
        subprocess.run([*GIT, "tag", "-d", "v0.4.0"], cwd=tmp_path, check=False)
        subprocess.run([*GIT, "tag", "-d", "v0.3.1"], cwd=tmp_path, check=False)
        done = release(version, written_snapshot(replace(now, version=version)), changes)
        assert done.returncode == code, done.stderr
    assert done.stdout == "cohort: 0.5.0 follows 0.3.0\n"
    assert read_snapshot(snapshot.read_text()).version == "0.5.0"
