"""The package's extras, as messages name them."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return how to install an extra; `cohort` on pypi.org is another project."""
    return f"install the extra cohort[{extra}] (in a clone: make install EXTRAS={extra})"
