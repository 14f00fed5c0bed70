"""Evidence that one worker of a host gives to the one that judges."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from cohort.rollouts.config import parse_rollouts
from cohort.rollouts.judgement import Counts
from cohort.rollouts.live import LiveRollout
from cohort.workers.given_evidence import give_evidence, read_given, take_evidence

CONFIG = """
m:
  variants: {stable: {version: 1, weight: 1}, canary: {version: VERSION, weight: 1}}
  guard: {max_error_rate_increase: 0.01, max_latency_ratio: 2}
"""


def live_rollout(version: int = 2) -> LiveRollout:
    """Return a rollout of which nothing was observed."""
    config = parse_rollouts(CONFIG.replace("VERSION", str(version)), "rollouts.yaml")["m"]
    return LiveRollout(config, dict, lambda _: None)


def count(live: LiveRollout, outcomes: list[tuple[bool, bool]], *, slot: float = 0.0) -> None:
    """Count outcomes, each of the baseline or not and bad or not, in separate slots."""
    for number, (baseline, bad) in enumerate(outcomes):
        variant = "stable" if baseline else "canary"
        live.evidence.count_outcome(variant, bad=bad, now=slot + number)


def carried(giver: LiveRollout, taker: LiveRollout) -> None:
    """Give all over the wire."""
    given_rows = json.loads(json.dumps(give_evidence({"m": giver})))
    take_evidence({"m": taker}, read_given(given_rows))


outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


@given(outcomes, outcomes)
def test_it_weighs_what_it_would_have_where_all_was_counted_in_one_process(
    here: list[tuple[bool, bool]], there: list[tuple[bool, bool]]
) -> None:
    """Units and outcomes are equal, and given once: nothing is given again."""
    judge, other, whole = live_rollout(), live_rollout(), live_rollout()
    count(judge, here)
    count(other, there)
    count(whole, here)
    count(whole, there, slot=1000)
    carried(other, judge)
    carried(other, judge)  # there is nothing left
    assert judge.judge() == whole.judge()
    ours, all_of_it = judge.evidence.candidates["canary"], whole.evidence.candidates["canary"]
    assert ours.errors.evidence == all_of_it.errors.evidence
    assert ours.errors.variant == all_of_it.errors.variant
    assert ours.errors.baseline == all_of_it.errors.baseline
    assert other.evidence.candidates["canary"].errors.variant == Counts()


def test_what_is_about_another_version_is_left_out() -> None:
    """One worker has read the edited file and another one has not."""
    judge, other = live_rollout(3), live_rollout(2)
    count(other, [(False, True), (True, False)])
    carried(other, judge)
    judge.judge()
    assert judge.evidence.candidates["canary"].errors.variant == Counts()
    take_evidence({}, read_given([["gone", 1, "a", "errors", [1, 1, 1, 1], [1, 1, 1, 1]]]))
