"""The sections of CHANGELOG.md, and the breaking changes that they name."""

from __future__ import annotations

import re

from tools import ROOT
from tools.release.differences import Change, Difference

CHANGELOG = ROOT / "CHANGELOG.md"

UNRELEASED = "Unreleased"

BREAKING = "### Breaking"


def section(text: str, name: str) -> str:
    """Return the section `## [name]` of a changelog; "" if there is none."""
    found = re.search(rf"^## \[{re.escape(name)}\].*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def undeclared(found: list[Difference], text: str) -> list[Difference]:
    """Return the breaking differences whose names are not under `### Breaking` in backticks.

    text: The section of the coming release.
    """
    declared = text.partition(BREAKING)[2].partition("\n### ")[0]
    return [one for one in found if one.needs is Change.MAJOR and f"`{one.name}`" not in declared]
