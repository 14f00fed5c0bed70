"""A wheel for an index links to the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.e2e.processes import ROOT
from tools.release.addresses import with_links


def test_the_page_on_an_index_has_no_link_to_a_path(tmp_path: Path) -> None:
    """README's links and pictures become addresses of the tag, and the metadata gets its links."""
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    repository = "https://git.example/team/cohort"
    subprocess.run(
        [sys.executable, "-m", "tools.release.addresses", tmp_path, f"{repository}/", "v1.2.3"],
        cwd=ROOT, check=True,
    )  # fmt: skip
    targets = re.findall(r"\]\(([^)]*)\)", (tmp_path / "README.md").read_text())
    assert len(targets) > 20
    assert not [one for one in targets if not one.startswith(("http", "#"))]
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == repository
    assert urls["Changelog"] == f"{repository}/blob/v1.2.3/CHANGELOG.md"


def test_a_picture_is_linked_as_a_file_and_an_address_stays() -> None:
    """An index shows the picture itself, not the page about it."""
    text = "![a](docs/a.png) [b](docs/b.md#c) [d](https://e.example) [f](#g)"
    assert with_links(text, "https://r.example/x", "v1") == (
        "![a](https://r.example/x/raw/v1/docs/a.png) [b](https://r.example/x/blob/v1/docs/b.md#c)"
        " [d](https://e.example) [f](#g)"
    )
