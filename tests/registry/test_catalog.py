"""The catalog's facts about versions."""

from __future__ import annotations

from dataclasses import replace

from cohort.registry import ModelEntry, VersionEntry
from cohort.row_independence import RowKind, RowVerdict
from tests.engines import ControlledEngine, make_entry


def entry(number: int, kind: RowKind, reason: str = "", *, mixed: str = "") -> VersionEntry:
    made = make_entry(number, ControlledEngine(rows=RowVerdict(kind)))
    return replace(made, batching_off=reason, mixed=mixed)


def lost(baseline: int, *entries: VersionEntry) -> dict[int, str]:
    return dict(ModelEntry("m", {one.number: one for one in entries}).batching_lost(baseline))


def test_batching_is_lost_where_rows_are_not_independent_any_more() -> None:
    """The graph or requests show it; slow larger batches are not a loss."""
    proven, shared = entry(1, RowKind.PROVEN), entry(2, RowKind.SHARED)
    refuted = entry(3, RowKind.REFUTED, "Sum adds up")
    mixed = entry(4, RowKind.PROVEN, "seen", mixed="seen")
    no_gain = entry(5, RowKind.PROVEN, "larger batches are not faster")
    trusted = entry(6, RowKind.UNKNOWN)
    failed = make_entry(7, reason="broken")
    entries = (proven, shared, refuted, mixed, no_gain, trusted, failed)
    assert lost(1, *entries) == {3: "Sum adds up", 4: "seen"}
    assert lost(2, *entries) == {3: "Sum adds up", 4: "seen"}


def test_nothing_is_lost_that_the_baseline_did_not_have() -> None:
    """Nothing is lost while the baseline is absent, either."""
    refuted = entry(2, RowKind.REFUTED, "Sum adds up")
    assert lost(1, entry(1, RowKind.UNKNOWN, "no rule"), refuted) == {}
    assert lost(1, entry(1, RowKind.PROVEN, "seen", mixed="seen"), refuted) == {}
    assert lost(1, make_entry(1, reason="broken"), refuted) == {}
    assert lost(1, refuted) == {}
