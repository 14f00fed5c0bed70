"""Verdicts on outputs and recipes, and the choice of the best recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort_prepare.evaluating.accuracy import PairedAccuracy, sign_test
from cohort_prepare.quantizing.deciding import decide
from cohort_prepare.quantizing.measuring import MeasuredPair, ModelMeasurement
from cohort_prepare.quantizing.quality import Quality
from cohort_prepare.quantizing.recipes import DynamicRecipe, Float16Recipe, GraphFacts
from cohort_prepare.quantizing.results import Candidate, QuantizeOptions
from cohort_prepare.quantizing.verdict import (
    Limits,
    best,
    closest,
    least_drop,
    loses_batching,
    pareto,
    speeds,
    why_not,
    why_unacceptable,
)

ORIGINAL = ModelMeasurement(1000, 0.1, {1: 0.001, 8: 0.004}, "")
SAME = Quality(1000, decision="scores")
FACTS = GraphFacts({"Gemm": 1}, ("fc",), 100, 100)


def pair(
    speed: float, size: int, quality: Quality = SAME, *, unbatchable: str = ""
) -> MeasuredPair:
    seconds = {rows: taken / speed for rows, taken in ORIGINAL.seconds.items()}
    return MeasuredPair(ORIGINAL, ModelMeasurement(size, 0.1, seconds, unbatchable), quality)


def labelled(lost: int, gained: int, rows: int = 1000) -> Quality:
    return Quality(rows, labels=PairedAccuracy(rows - lost - gained, lost, gained))


@pytest.mark.parametrize(("lost", "gained", "rows"), [(1, 0, 20), (8, 6, 100), (9, 0, 1000)])
def test_what_chance_explains_is_no_drop(lost: int, gained: int, rows: int) -> None:
    """A row of twenty, as many gained as lost, or a drop that is allowed."""
    assert why_unacceptable(labelled(lost, gained, rows), Limits(0.01)) == ""


def test_a_fall_of_accuracy_is_refused_with_its_figures() -> None:
    """Fifteen more of a thousand rows are wrong."""
    assert why_unacceptable(labelled(18, 3), Limits(0.01)) == (
        "accuracy drops by 1.50% (18 of 1000 rows lost, 3 gained), more than the allowed 1.00%"
    )
    assert why_unacceptable(labelled(18, 3), Limits(0.02)) == ""


def test_the_sign_test_is_the_binomial() -> None:
    """Five of five lost is one of 32 outcomes; as many lost as gained is likely."""
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(1, 1) == 0.75
    assert sign_test(0, 0) == 1.0
    assert least_drop(450) == pytest.approx(5 / 450)


def test_without_labels_decisions_count_and_else_directions() -> None:
    """Rows decided otherwise beyond the allowed share, or a cosine below .99, are refused."""
    assert why_unacceptable(replace(SAME, changed=10), Limits(0.01)) == ""
    assert "11 of 1000 rows" in why_unacceptable(replace(SAME, changed=11), Limits(0.01))
    assert why_unacceptable(Quality(20, decision="scores", changed=1), Limits(0.01)) == ""
    assert "cosine is 0.9800" in why_unacceptable(Quality(10, cosine=0.98), Limits())
    assert why_unacceptable(Quality(10, cosine=0.995), Limits()) == ""


def test_batching_that_is_lost_counts_in_service() -> None:
    """Twice as fast at one row is slower for eight callers if their rows run one by one."""
    influenced = pair(2.0, 300, unbatchable="rows influence each other")
    assert speeds(influenced) == {1: 2.0, 8: 1.0}
    slower = pair(1.5, 300, unbatchable="rows influence each other")
    assert speeds(slower)[8] == pytest.approx(0.75)
    assert loses_batching(slower)
    assert why_not(slower, Limits()) == (
        "it is 1.3 times slower at 8 rows, since rows influence each other"
    )


def test_a_recipe_that_costs_batching_is_told_with_those_that_keep_it() -> None:
    """Its rows are not proven independent, and those of the original and of another recipe are."""
    pairs = {
        "dynamic": pair(2.0, 300, unbatchable="rows may influence each other; Sum 'y': it adds up"),
        "fp16": pair(1.5, 500),
    }
    candidates = [
        Candidate(DynamicRecipe("int8", reduce_range=False), pair=pairs["dynamic"]),
        Candidate(Float16Recipe(), pair=pairs["fp16"]),
    ]
    made = decide(FACTS, QuantizeOptions(), candidates, calibration_rows=0, notes=())
    (note,) = [one for one in made.notes if "batched" in one]
    assert note.startswith("dynamic cannot be batched, since rows may influence each other")
    assert note.endswith("; fp16 can be batched")


def test_the_best_is_the_fastest_of_those_worth_it() -> None:
    """Slower ones and those whose outputs are worse never; of nearly equal ones the smallest."""
    pairs = {
        "slow": pair(0.5, 100),
        "wrong": pair(4.0, 100, labelled(50, 0)),
        "fast": pair(2.0, 400),
        "small": pair(1.95, 300),
        "smaller": pair(1.2, 250),
    }
    assert best(pairs, Limits()) == "small"
    assert best({"slow": pairs["slow"], "wrong": pairs["wrong"]}, Limits()) == ""
    assert pareto(pairs, Limits()) == ["slow", "fast", "small", "smaller"]


def test_much_smaller_and_as_fast_is_worth_it() -> None:
    """A quarter of the size pays without any speed; a tenth less does not."""
    assert why_not(pair(1.0, 250), Limits()) == ""
    assert "only 1.00 times as fast" in why_not(pair(1.0, 900), Limits())


def test_the_closest_outputs_are_those_with_least_noise() -> None:
    """One more right row by chance is not a reason; a refused recipe comes last."""
    qualities = {
        "luckier": replace(labelled(0, 1), noise=0.2),
        "closer": replace(labelled(0, 0), noise=0.1),
        "refused": replace(labelled(99, 0), noise=0.0),
    }
    assert closest(qualities, Limits()) == "closer"
