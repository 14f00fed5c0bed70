"""The simulation behind the table of the rollout guide, a few runs of it."""

from __future__ import annotations

from random import Random

from benchmarks.rollouts import (
    AT,
    GUIDE,
    TABLE,
    Asked,
    Case,
    Replays,
    constant,
    independent,
    rolled_back_after,
    sticky,
    table,
)


def test_callers_who_always_fail_are_sent_to_a_version_by_their_keys() -> None:
    """Each of them stays there, and what it sends fails on both; others fail by chance alone."""
    traffic = sticky(Random(1), AT)
    asked = [one for _ in range(5000) for one in next(traffic)]
    variants = {(one.caller, one.variant) for one in asked}
    assert len(variants) == len({one.caller for one in asked}) == 400
    bad = {one.caller for one in asked if one.on_both}
    assert 2 <= len(bad) <= 20
    assert all(one.bad and one.on_both for one in asked if one.caller in bad)
    assert 0 < sum(one.bad for one in asked if one.caller not in bad) < 150


def test_what_fails_on_both_versions_is_tried_there_and_is_no_evidence() -> None:
    """As in the server, a request that fails on one version only is bad."""
    replays = Replays()
    for number, on_both in enumerate((True, False, True)):
        replays.count(Asked(number, "b", number, bad=True, on_both=on_both))
    replays.live.judge()
    evidence = replays.live.evidence.candidates["b"]
    assert (evidence.failed_on_both, evidence.errors.variant.bad) == (2, 1)


def test_a_bad_canary_goes_and_one_at_the_limit_stays() -> None:
    """The bad canary goes within 200 requests."""
    bad = Case("", independent, constant(0.01, 0.3))
    assert all((rolled_back_after(bad, seed) or 999) < 200 for seed in range(3))
    assert rolled_back_after(Case("", sticky, AT, 300), 1) is None


def test_rows_that_are_not_made_anew_stay_as_they_are() -> None:
    """Each row of the guide has a place in the table, and unmeasured rows stay."""
    found = TABLE.search(GUIDE.read_text())
    assert found is not None
    made = table(1, 1, kept=found[0], only="no row is called so")
    assert made.splitlines()[:-1] == found[0].splitlines()[:-1]
