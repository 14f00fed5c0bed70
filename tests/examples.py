"""The number of examples that a property test draws."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return `count`, or ten times as many in nightly runs, for `max_examples`."""
    return 10 * count if settings.get_current_profile_name() == "nightly" else count
