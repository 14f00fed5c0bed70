"""This tree keeps the promises of the last release, or its changelog names those it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.release.__main__ import main
from tools.release.changelog import CHANGELOG, UNRELEASED, section, undeclared
from tools.release.differences import differences
from tools.release.snapshot import SNAPSHOT, read_snapshot, written_snapshot
from tools.release.surface import present_surface


def test_each_breaking_difference_from_the_last_release_is_declared() -> None:
    """Routes, calls, settings, keys, metrics, commands and names are those of the snapshot.

    Names may be added. If this fails: restore the name, or list it in CHANGELOG.md below
    `## [Unreleased]`, `### Breaking`. `make release-compare` prints all differences.
    """
    last = read_snapshot(SNAPSHOT.read_text(encoding="utf-8"))
    found = differences(last.groups, present_surface().groups)
    changes = section(CHANGELOG.read_text(encoding="utf-8"), UNRELEASED)
    assert [str(one) for one in undeclared(found, changes)] == []


def test_a_release_needs_a_version_that_is_high_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verb refuses a lower one and names the difference; then it writes the snapshot."""
    now = present_surface()
    groups = {name: dict(items) for name, items in now.groups.items()}
    groups["settings"]["COHORT_FORMER"] = {"kinds": ["integer"], "required": False}
    del groups["metrics"]["server_ready"]
    file = tmp_path / "snapshot.json"
    file.write_text(written_snapshot(type(now)("1.4.2", groups)))
    run = ["--snapshot", str(file)]
    assert main([*run, "compare"]) == 0
    said = capsys.readouterr().out
    assert "major: settings: COHORT_FORMER was removed\n" in said
    assert "minor: metrics: server_ready was added\n" in said
    assert "2 differences from 1.4.2: the next version must be at least 2.0.0" in said
    assert "must name under '### Breaking': `COHORT_FORMER`" in said

    for version in ("1.4.3", "v1.5.0"):
        assert main([*run, "snapshot", version]) == 1
        assert "is too low after 1.4.2: use 2.0.0\n  major: settings: COHORT_FORMER" in (
            capsys.readouterr().err
        )
    assert main([*run, "check", "2.0.0"]) == 1
    assert "the snapshot is of 1.4.2" in capsys.readouterr().err
    assert main([*run, "snapshot", "v2.0.0"]) == 0
    assert read_snapshot(file.read_text()) == type(now)("2.0.0", now.groups)
    assert main([*run, "check", "2.0.0"]) == 1
    assert "CHANGELOG.md has no section '## [2.0.0]'" in capsys.readouterr().err
