"""Effects of the promise that callers get the bits that they get alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.batching import BatchPolicy, Padding, PadPlan, plan_padding
from cohort.profiling import (
    MEASURING,
    OTHER_BITS,
    Profile,
    ProfileResult,
    RowFindings,
    Store,
    Threads,
    find_trial,
    with_findings,
)
from cohort.profiling.exact import exact_profile, try_exactness
from cohort.profiling.exactness import Exactness
from cohort.profiling.result import keep, profile_model
from cohort.row_independence import RowKind, RowVerdict
from cohort.session import Opener, SessionOptions
from cohort.tensors import TensorSpec
from tests import onnx_models
from tests.e2e.rounding_models import ROUNDINGS

MEASURED = Profile({1: 0.001, 2: 0.001, 8: 0.002}, 8)
EXACT = BatchPolicy(max_batch_size=8, exact=True)
PLAIN = BatchPolicy(max_batch_size=8)
ROUNDS = Exactness(2, "ReduceSum 'sum' rounds a row in another way when it is alone")


def test_a_lone_row_runs_as_two_where_the_bits_are_promised() -> None:
    """Its runs take as long as those of two rows; nothing changes without the promise."""
    found = exact_profile(MEASURED, ROUNDS, EXACT)
    assert (found.max_batch_size, found.filled_rows) == (8, 2)
    assert found.seconds_for(1) == MEASURED.seconds[2]
    assert exact_profile(MEASURED, ROUNDS, PLAIN) == MEASURED
    assert exact_profile(MEASURED, Exactness(1), EXACT).filled_rows == 0


def test_batching_is_off_where_no_number_of_rows_helps() -> None:
    """The reason names the node; batching is also off until the result is known."""
    found = exact_profile(MEASURED, Exactness(0, "Log 'log' rounds"), EXACT)
    assert (found.max_batch_size, found.reason) == (
        1,
        "callers would get other bits than alone (batching.exact): Log 'log' rounds",
    )


def test_lone_rows_run_as_two_before_it_is_known_and_where_batches_are_no_faster() -> None:
    """Their bits are those of a longer run in any case, as those of later answers may be."""
    before = exact_profile(MEASURED, None, EXACT)
    assert (before.max_batch_size, before.reason, before.filled_rows) == (1, MEASURING, 2)
    slow = replace(MEASURED, max_batch_size=1, reason="larger batches are not faster here")
    assert exact_profile(slow, ROUNDS, EXACT).filled_rows == 2
    assert exact_profile(slow, Exactness(1), EXACT).filled_rows == 0
    assert exact_profile(slow, Exactness(0, "Log"), EXACT).reason == slow.reason
    off = replace(EXACT, max_batch_size=1)
    assert exact_profile(slow, ROUNDS, off) == slow


def test_rows_that_influence_each_other_are_never_filled_up(tmp_path: Path) -> None:
    """The graph or the served requests can prove the influence."""
    path = onnx_models.save(onnx_models.normalized_over_rows(), tmp_path / "m/1/model.onnx")
    opener = Opener(path)
    session = opener.open()
    trial = find_trial(session.run, session.inputs)
    found = profile_model(opener, session, trial, EXACT)
    session.close()
    assert found.profile.filled_rows == 0
    path = onnx_models.save(ROUNDINGS["sums"].model(), tmp_path / "s/1/model.onnx")
    session = Opener(path).open()
    findings, filled = RowFindings(tmp_path), result(profile=replace(MEASURED, least_rows=2))
    for reason, rows in (("rows influence each other", 0), (OTHER_BITS, 2)):
        findings.write("digest", EXACT, reason)
        kept = with_findings(filled, session, EXACT, findings, lambda: "digest")
        assert (kept.profile.max_batch_size, kept.profile.filled_rows) == (1, rows)
        for file in (tmp_path / "rows").iterdir():
            file.unlink()
    session.close()


def result(**changes: object) -> ProfileResult:
    found = ProfileResult(MEASURED, PadPlan(), exactness=Exactness(1))
    return replace(found, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "policy", "why"),
    [
        (result(), PLAIN, ""),
        (result(exactness=ROUNDS), PLAIN, ROUNDS.reason),
        (result(exactness=ROUNDS), EXACT, ""),
        (result(exactness=ROUNDS), replace(PLAIN, max_batch_size=1), ""),
        (result(exactness=None), PLAIN, MEASURING),
        (result(exactness=ROUNDS, profile=replace(MEASURED, change_seconds=1.0)), PLAIN, ""),
        (
            result(exactness=Exactness(1, "by address", only_aligned=True)),
            PLAIN,
            "by address",
        ),
        (
            result(threads=Threads(4, 4, 2.0)),
            PLAIN,
            "a run takes 4 threads while there is no other, and may round otherwise",
        ),
        (
            result(
                padding=plan_padding([TensorSpec("x", "INT64", ("N", "T"))], [], {"x": Padding()})
            ),
            PLAIN,
            "padded runs may round otherwise",
        ),
    ],
)
def test_it_is_said_why_callers_may_get_other_bits(
    found: ProfileResult, policy: BatchPolicy, why: str
) -> None:
    """Runs that are filled up anyway count, and requests that share none."""
    assert found.why_not_exact(policy, RowVerdict(RowKind.PROVEN)) == why


def test_a_model_without_a_proof_keeps_no_promise() -> None:
    """One that gives another result each time does not even alone; the node is named."""
    random = RowVerdict(RowKind.RANDOM, "RandomNormal 'r'", "it draws")
    refuted = RowVerdict(RowKind.REFUTED, "ReduceMax 'm'", "it takes the largest")
    alone = replace(PLAIN, max_batch_size=1)
    assert "RandomNormal 'r'" in result().why_not_exact(alone, random)
    assert "ReduceMax 'm'" in result().why_not_exact(PLAIN, refuted)
    assert result().why_not_exact(alone, refuted) == ""


def test_what_was_tried_is_kept_with_the_profile(tmp_path: Path) -> None:
    """It is not tried again after a restart, and a promise has a separate profile."""
    path = onnx_models.save(ROUNDINGS["sums"].model(), tmp_path / "m/1/model.onnx")
    store, opener = Store(tmp_path / "cache"), Opener(path)
    session = opener.open()
    trial = find_trial(session.run, session.inputs)
    first = profile_model(opener, session, trial, EXACT, store)
    again = profile_model(opener, session, trial, EXACT, store)
    plain = profile_model(opener, session, trial, PLAIN, store)
    session.close()
    assert first.exactness is not None
    assert first.exactness.least_rows in (1, 2)  # 1: larger batches are not faster here
    assert (again.kept, again.exactness, again.profile.least_rows) == (
        True,
        first.exactness,
        first.profile.least_rows,
    )
    assert not plain.kept


@pytest.mark.parametrize(
    "exactness",
    [
        Exactness(9, "too many"),
        Exactness(-1, "too few"),
        Exactness(2),
        Exactness(1, "a reason"),
        Exactness(0, "r" * 10_001),
        Exactness(1, "", (1, 2)),
    ],
)
def test_a_kept_finding_that_makes_no_sense_is_not_used(
    tmp_path: Path, exactness: Exactness
) -> None:
    """Anything may be in the file."""
    store, key = Store(tmp_path), {"model": "0" * 64}
    keep(store, key, replace(result(exactness=exactness), measured="2026-01-01T00:00:00+00:00"))
    assert store.read(key, PLAIN) is None
    keep(store, key, replace(result(exactness=ROUNDS), measured="2026-01-01T00:00:00+00:00"))
    kept = store.read(key, PLAIN)
    assert kept is not None
    assert kept.exactness == ROUNDS


def test_kernels_that_differ_by_length_are_found(tmp_path: Path) -> None:
    """A product with a single row is another kernel than one with sixteen."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N, S, 64] x) => (float[N, S, 32] y) '
        '{y = Einsum <equation: string = "nsk,km->nsm"> (x, w)}'
    )
    weights = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    session = Opener(onnx_models.save(model, tmp_path / "m/1/model.onnx")).open()
    trial = find_trial(session.run, session.inputs)
    found = try_exactness(session.run, session, trial, 8, options=SessionOptions())
    session.close()
    assert trial.length == 16
    assert found.least_rows != 1
    assert found.reason.startswith("here output 'y' of a row differs by")
