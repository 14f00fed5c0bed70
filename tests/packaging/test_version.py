"""The version of a build is that of the tag, and no clone or copy is without one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
COMMIT = (*GIT, "commit", "-q", "--allow-empty", "-m", "more")
START = (("git", "init", "-q"), ("git", "add", "-A"), COMMIT)


@pytest.mark.parametrize(
    ("commands", "version"),
    [
        ((), "0.0.0"),
        ((*START, ("git", "tag", "nightly-7"), ("git", "tag", "v1.2.3-try")), "0.0.1.dev1+g*"),
        ((*START, ("git", "tag", "v1.2.3"), COMMIT, COMMIT), "1.2.4.dev2+g*"),
        ((*START, COMMIT, ("git", "tag", "v1.2.3")), "1.2.3"),
    ],
    ids=["without git", "without a tag of a version", "after a tag", "at a tag"],
)
def test_a_build_is_of_the_version_that_git_says(
    commands: Sequence[Sequence[str]], version: str, tmp_path: Path
) -> None:
    """Other tags are ignored, and each build succeeds."""
    source = tmp_path / "source"
    (source / "app" / "cohort").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".git_archival.txt", ".gitattributes"):
        shutil.copy(ROOT / name, source)
    (source / "app" / "cohort" / "__init__.py").write_text("")
    for command in commands:
        subprocess.run(command, cwd=source, check=True)
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    subprocess.run(
        [uv, "build", "-q", "--wheel", "--out-dir", tmp_path, "--require-hashes",
         "--build-constraints", ROOT / "requirements/setup.txt", source],
        check=True,
    )  # fmt: skip
    assert len(list(tmp_path.glob(f"cohort-{version}-py3-none-any.whl"))) == 1
