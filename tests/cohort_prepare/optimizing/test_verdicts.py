"""The decision to keep a step."""

from __future__ import annotations

import pytest

from cohort_prepare.evaluating.timing import Comparison, Ratio, RunTimes
from cohort_prepare.failures import Misused
from cohort_prepare.optimizing.choices import OPTIMIZE_STEPS, OptimizeOptions
from cohort_prepare.optimizing.measuring import MeasuredChange
from cohort_prepare.optimizing.verdicts import Footprint, judge_step

SLIM, FP16 = OPTIMIZE_STEPS["slim"], OPTIMIZE_STEPS["fp16"]

FOOTPRINT = Footprint(1000, 10)

SAME, SLOWER, FASTER = Ratio(1, 0.99, 1.01), Ratio(1.2, 1.1, 1.3), Ratio(0.8, 0.7, 0.9)


def test_a_step_that_gains_is_kept() -> None:
    """Speed, a quicker start, a smaller file or a smaller graph suffices and is the reason."""
    for after, measured, why in (
        (FOOTPRINT, _measured(FASTER), "faster with 1 row (0.80x the time)"),
        (FOOTPRINT, _measured(load=FASTER), "faster to load (0.80x the time)"),
        (Footprint(500, 10), _measured(), "50% smaller"),
        (Footprint(1000, 7), _measured(), "3 nodes fewer"),
    ):
        verdict = judge_step(SLIM, FOOTPRINT, after, measured, asked=False)
        assert (verdict.kept, verdict.why) == (True, why)


def test_a_step_that_changes_nothing_is_left() -> None:
    """A step without a gain is not kept."""
    verdict = judge_step(SLIM, FOOTPRINT, Footprint(999, 10), _measured(), asked=False)
    assert (verdict.kept, verdict.why) == (False, "no gain")


def test_a_slower_step_is_left_unless_asked_for() -> None:
    """It is left however small the file gets; with `asked` it is kept, with its figures."""
    for asked in (False, True):
        verdict = judge_step(FP16, FOOTPRINT, Footprint(500, 9), _measured(SLOWER), asked=asked)
        assert verdict.kept is asked
        assert "slower with 1 row (1.20x the time)" in verdict.why


def test_a_slower_start_is_made_up_for_by_faster_runs_only() -> None:
    """A server starts once and runs for days."""
    for runs, kept in ((SAME, False), (FASTER, True)):
        verdict = judge_step(
            SLIM,
            FOOTPRINT,
            Footprint(500, 9),
            _measured(runs, SLOWER),
            asked=False,
        )
        assert verdict.kept is kept


def test_digits_are_given_for_speed_only() -> None:
    """A step that costs precision is not kept for a smaller file alone, unless asked for."""
    smaller = Footprint(500, 10)
    assert not judge_step(FP16, FOOTPRINT, smaller, _measured(), asked=False).kept
    assert judge_step(FP16, FOOTPRINT, smaller, _measured(), asked=True).kept
    assert judge_step(FP16, FOOTPRINT, smaller, _measured(FASTER), asked=False).kept


def test_a_wrong_result_is_never_kept() -> None:
    """A step that changes an output is not kept, even if the user asked for it."""
    verdict = judge_step(
        SLIM, FOOTPRINT, Footprint(1, 1), MeasuredChange("output 'y' is off"), asked=True
    )
    assert (verdict.kept, verdict.why) == (False, "output 'y' is off")


def test_unknown_steps_are_said() -> None:
    """The error names the likely one, or the option or type that is needed."""
    with pytest.raises(Misused, match="did you mean 'slim'"):
        OptimizeOptions(steps=("slin",)).plan()
    with pytest.raises(Misused, match="--opset N"):
        OptimizeOptions(steps=("opset",)).plan()
    with pytest.raises(Misused, match="did you mean 'bert'"):
        OptimizeOptions(model_type="berd").plan()
    assert [one.name for one in OptimizeOptions(steps=(), opset=17).plan()] == ["opset"]


def _measured(runs: Ratio = SAME, load: Ratio = SAME) -> MeasuredChange:
    return MeasuredChange("", None, {1: _compared(runs)}, _compared(load))


def _compared(ratio: Ratio) -> Comparison:
    return Comparison(RunTimes(1, 1, 9), RunTimes(1, 1, 9), ratio)
