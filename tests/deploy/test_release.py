"""The steps of the release workflow that pack and publish, run with programs that note how."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.e2e.processes import ROOT

WORKFLOW: Any = YAML(typ="safe", pure=True).load(
    (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
)

DIGEST = "sha256:" + "a" * 64

GIVEN = {
    "GITHUB_REF_NAME": "v1.2.3",
    "GITHUB_SERVER_URL": "https://git.example",
    "GITHUB_REPOSITORY": "team/cohort",
    "IMAGE": "registry.example/team/cohort",
    "REGISTRY": "registry.example",
    "RELEASE_USER": "user",
    "RELEASE_PASSWORD": "secret",
}

NOTE = f"""#!/bin/sh
echo "${{0##*/}} $*" >>"$NOTES"
[ "${{0##*/}} $1" != "helm push" ] || printf 'Pushed: it\\nDigest: {DIGEST}\\n' >&2
[ "$2" != login ] && [ "$1" != login ] || [ "$(cat)" = secret ]
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Programs that write their command line into a file."""
    for name in ("helm", "cosign", "gh", "make"):
        (tmp_path / name).write_text(NOTE)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run_steps(job: str, folder: Path, *names: str) -> list[str]:
    """Run these steps of a job as the workflow does; return the commands that they ran."""
    notes = folder / "notes"
    notes.write_text("")
    for step in WORKFLOW["jobs"][job]["steps"]:
        if step.get("name") in names:
            subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=folder, check=True, capture_output=True,
                env={**GIVEN, "NOTES": str(notes), "PATH": f"{folder}:{os.environ['PATH']}"},
            )  # fmt: skip
    return notes.read_text().splitlines()


def test_the_wheel_is_built_for_the_tag_and_has_its_version(programs: Path) -> None:
    """The check comes first; a build of another version ends the job."""
    with pytest.raises(subprocess.CalledProcessError):
        run_steps("wheel", programs, "Check the version", "Build")
    (programs / "dist").mkdir()
    (programs / "dist/cohort-1.2.3-py3-none-any.whl").write_text("")
    assert run_steps("wheel", programs, "Check the version", "Build") == [
        "make release-check VERSION=1.2.3",
        "make wheel wheel-check REPOSITORY=https://git.example/team/cohort TAG=v1.2.3",
    ]


def test_the_chart_has_the_version_and_is_signed_by_its_digest(programs: Path) -> None:
    """It runs the images of the release, and its name is the one that is pushed."""
    chart = programs / "deploy/kubernetes/chart"
    shutil.copytree(ROOT / "deploy/kubernetes/chart", chart)
    ran = run_steps("chart", programs, "Package", "Push and sign")
    assert ran == [
        "helm package deploy/kubernetes/chart --destination dist --version 1.2.3"
        " --app-version 1.2.3",
        "helm registry login registry.example --username user --password-stdin",
        "cosign login registry.example --username user --password-stdin",
        "helm push dist/cohort-1.2.3.tgz oci://registry.example/team/charts",
        f"cosign sign --yes registry.example/team/charts/cohort@{DIGEST}",
    ]
    for name, kind in (("values.yaml", "cpu"), ("values-gpu.yaml", "gpu")):
        assert f"\nimage: registry.example/team/cohort:1.2.3-{kind}" in (chart / name).read_text()


def test_the_release_has_the_notes_of_its_version(programs: Path) -> None:
    """The section of the changelog without its heading, and no other one."""
    (programs / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\nno\n\n## [1.2.3] - 2027-01-01\n\n### Added\n\n- yes\n"
        "\n## [1.2.2]\n\nno\n"
    )
    (programs / "files").mkdir()
    (programs / "files/a.whl").write_text("")
    assert run_steps("publish", programs, "Publish") == [
        "gh release create v1.2.3 --verify-tag --title v1.2.3 --notes-file notes.md files/a.whl"
    ]
    assert (programs / "notes.md").read_text().strip() == "### Added\n\n- yes"
