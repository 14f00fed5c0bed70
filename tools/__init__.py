"""Programs for developers of Cohort, run by make verbs. The wheel does not contain them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The root of the repository."""
