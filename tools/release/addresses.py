"""Give a copy of the project its addresses, which its page on a package index links to.

It needs only the standard library, because `make wheel` runs it with any Python.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")

_PAGES = {
    "Documentation": "blob/{tag}/docs/index.md",
    "Changelog": "blob/{tag}/CHANGELOG.md",
    "Issues": "issues",
    "Security policy": "blob/{tag}/SECURITY.md",
}


def with_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown with addresses of the tag in place of paths of pages and pictures."""

    def address(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}{found[2]}({repository}/{kind}/{tag}/{found[3]})"

    return _LINK.sub(address, text)


def with_urls(text: str, repository: str, tag: str) -> str:
    """Return a pyproject.toml with `[project.urls]`."""
    urls = {"Repository": repository} | {
        name: f"{repository}/{path.format(tag=tag)}" for name, path in _PAGES.items()
    }
    lines = "".join(f"{json.dumps(name)} = {json.dumps(url)}\n" for name, url in urls.items())
    return text.replace("[project.scripts]\n", f"[project.urls]\n{lines}\n[project.scripts]\n", 1)


def main(folder: str, repository: str, tag: str) -> None:
    """Change README.md and pyproject.toml in the folder."""
    for name, changed in (("README.md", with_links), ("pyproject.toml", with_urls)):
        path = Path(folder, name)
        path.write_text(changed(path.read_text("utf-8"), repository.rstrip("/"), tag), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
