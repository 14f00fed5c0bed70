"""Measurements of a model at load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import FIRST_AXIS, BatchPolicy, Outputs, Padding, RowCost, RowPlan, RunFeeds
from cohort.errors import InferenceFailed, InvalidInput
from cohort.profiling import (
    MEASURING,
    OutOfTime,
    Profile,
    Trial,
    choose_size,
    find_trial,
    measure_profile,
    pad_safely,
    plan_rows,
    sizes_up_to,
    synthetic_inputs,
    why_unbatchable,
)
from cohort.profiling.runs import BriefRuns
from cohort.row_independence import OutputRows, RequestKind, RowKind, RowVerdict
from cohort.session import Session, open_session
from cohort.tensors import Array, Arrays, TensorSpec
from tests import onnx_models

PLAIN = BatchPolicy()
APART = RowVerdict(RowKind.PROVEN)


def opened(model: onnx.ModelProto, folder: Path) -> Session:
    """Open `model` for real."""
    return open_session(onnx_models.save(model, folder / "model.onnx"))


def tried(model: onnx.ModelProto, folder: Path, policy: BatchPolicy | None = None) -> Profile:
    """Profile `model` for real."""
    session = opened(model, folder)
    return profiled(
        session.run, session.inputs, session.outputs, policy or BatchPolicy(), session.rows
    )


def profiled(
    run: RunFeeds,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    policy: BatchPolicy = PLAIN,
    rows: RowVerdict = APART,
) -> Profile:
    """Profile whatever `run` does."""
    return measure_profile(run, find_trial(run, inputs), inputs, outputs, policy, rows=rows)


def unranked() -> onnx.ModelProto:
    """Return a model whose file declares no shape of its input."""
    made = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> any (float x) => (float y) { y = Relu(x) }'
    )
    made.graph.input[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (onnx_models.normalized_over_rows, "rows may influence each other; Reduce"),
        (onnx_models.dynamically_quantized, "DynamicQuantizeLinear"),
        (onnx_models.rows_sum, "ReduceSum"),
        (onnx_models.fixed_rows, "fixed first dimension"),
        (onnx_models.scalar, "has no rows"),
        (unranked, "the file does not declare the number of dimensions of input 'x'"),
        (onnx_models.no_inputs, "it has no inputs"),
        (onnx_models.sequence, "not a tensor"),
    ],
)
def test_a_model_that_cannot_batch_is_found_out(
    tmp_path: Path, build: Callable[[], onnx.ModelProto], says: str
) -> None:
    """Its requests run one by one, and the profile contains the reason."""
    found_out = tried(build(), tmp_path)
    assert found_out.max_batch_size == 1
    assert says in found_out.reason


@pytest.mark.parametrize(
    "build",
    [onnx_models.mlp, onnx_models.strings, onnx_models.two_inputs, onnx_models.variable_length],
)
def test_rows_that_do_not_influence_each_other_may_batch(
    tmp_path: Path, build: Callable[[], onnx.ModelProto]
) -> None:
    """This holds for all datatypes and lengths; the choice is then a matter of speed."""
    found_out = tried(build(), tmp_path)
    assert found_out.reason in ("", "larger batches are not faster here")
    assert found_out.seconds[1] > 0


def test_trust_is_the_operators_word_for_what_is_not_proven(tmp_path: Path) -> None:
    """A node that combines rows is `refuted` only; and outputs must still follow the rows."""
    mixing, trusting = onnx_models.normalized_over_rows(), BatchPolicy(trust=True)
    assert "trust: refuted" in tried(mixing, tmp_path, trusting).reason
    refuted = BatchPolicy(trust="refuted")
    assert "influence" not in tried(mixing, tmp_path, refuted).reason
    assert tried(onnx_models.rows_sum(), tmp_path, refuted).max_batch_size == 1
    specs = [TensorSpec("x", "FP32", ("N", 3))]
    unknown = RowVerdict(RowKind.UNKNOWN, "Op 'y'", "there is no rule for this operator")
    for policy, on in ((PLAIN, False), (trusting, True), (refuted, True)):
        found = profiled(lambda feeds: [feeds["x"]], specs, specs, policy, unknown)
        assert ("Op 'y'" in found.reason) is not on


def test_trust_does_not_join_rows_that_may_be_along_another_axis() -> None:
    """Requests are joined along axis 0 where nothing is proven: there, time may be."""
    specs = [TensorSpec("x", "FP32", ("T", "N"))]
    for kind in (RowKind.UNKNOWN, RowKind.REFUTED):
        verdict = RowVerdict(kind, "Op 'y'", "it takes the largest", inputs={"x": 1})
        said = why_unbatchable(specs, specs, verdict, BatchPolicy(trust="refuted"))
        assert "batching.trust does not help: rows of 'x' are not along axis 0" in said


def test_max_batch_size_1_turns_batching_off(tmp_path: Path) -> None:
    """Only single rows are timed."""
    found_out = tried(onnx_models.mlp(), tmp_path, BatchPolicy(max_batch_size=1))
    assert (found_out.max_batch_size, list(found_out.seconds)) == (1, [1])
    assert found_out.reason == "max_batch_size is 1"


def test_a_model_that_refuses_made_up_inputs_is_served_one_by_one() -> None:
    """It was not shown that its rows are independent, so they are kept apart."""

    def refuse(feeds: object) -> list[np.ndarray]:
        raise InvalidInput("only ISO dates, please")

    spec = (TensorSpec("date", "BYTES", ("N",)),)
    found_out = profiled(refuse, spec, spec)
    assert found_out.max_batch_size == 1
    assert "ISO dates" in found_out.reason


def test_open_dimensions_are_filled_with_a_length_the_model_takes() -> None:
    """Lengths are tried until one fits."""

    def only_32(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        if feeds["x"].shape[1] != 32:
            raise InvalidInput("no")
        return [feeds["x"]]

    trial = find_trial(only_32, [TensorSpec("x", "FP32", ("N", "L"))])
    assert trial.feeds(5)["x"].shape == (5, 32)


def test_inputs_like_an_example_are_tried_first() -> None:
    """They have its sizes, other rows, and its values for inputs without rows."""

    def only_of_one_size(feeds: Arrays) -> Outputs:
        if feeds["x"].shape[1:] != (7,) or feeds["rate"] != 16:
            raise InvalidInput("no")
        return [feeds["x"]]

    specs = [TensorSpec("x", "FP32", ("N", "L")), TensorSpec("rate", "INT64", ())]
    example = {"x": np.zeros((2, 7), np.float32), "rate": np.array(16)}
    trial = find_trial(only_of_one_size, specs, examples=[example])
    assert trial.feeds(5)["x"].shape == (5, 7)
    assert trial.feeds(5)["x"].any()
    assert find_trial(only_of_one_size, specs).problem
    refused = {**example, "rate": np.array(8)}
    assert find_trial(only_of_one_size, specs, examples=[refused]).problem == "no"


def test_requests_of_proven_kinds_are_joined_and_no_others() -> None:
    """They are joined along axis 0 as well; shared inputs equal those of the proof, bit by bit."""
    inputs = [TensorSpec("x", "FP32", ("N", "T")), TensorSpec("gain", "FP32", ())]
    kind = RequestKind({"x": (1, 4), "gain": ()}, {"gain": (float(np.float32(0.1)),)})
    proof = RowVerdict(
        RowKind.SHARED,
        inputs={"x": 0, "gain": None},
        outputs={"y": OutputRows(0)},
        requests=(kind,),
    )
    stacking = plan_rows(inputs, [TensorSpec("y", "FP32", ("N",))], proof)

    def shares(length: int, gain: float) -> bool:
        request: Arrays = {"x": np.ones((3, length), "f4"), "gain": np.array(gain, "f4")}
        return stacking.rows_and_key(request)[1] is not None

    assert shares(4, 0.1)
    assert not shares(5, 0.1)
    assert not shares(4, 0.2)
    along = replace(
        proof, kind=RowKind.PROVEN, inputs={"x": 0}, requests=(RequestKind({"x": (1, 4)}),)
    )
    assert plan_rows(inputs[:1], [TensorSpec("y", "FP32", ("N",))], along) is not FIRST_AXIS


def test_requests_are_joined_where_their_rows_are_proven_to_be() -> None:
    """A network may take time first, or a row may have several entries of an output."""
    inputs = [TensorSpec("x", "FP32", ("T", "N")), TensorSpec("m", "FP32", ("N", "T"))]
    outputs = [TensorSpec("y", "FP32", (None,))]
    proof = RowVerdict(
        RowKind.PROVEN, inputs={"x": 1, "m": 0}, outputs={"y": OutputRows(0, 5)}, equal_sizes=True
    )
    assert why_unbatchable(inputs, outputs, proof) == ""
    equal = [[("x", 0), ("m", 1)]]
    assert plan_rows(inputs, outputs, proof) == RowPlan(proof.inputs, [OutputRows(0, 5)], equal)
    along = RowVerdict(RowKind.PROVEN, inputs={"x": 0, "m": 0}, outputs={"y": OutputRows(0)})
    assert plan_rows(inputs, outputs, along) is FIRST_AXIS
    unknown = RowVerdict(RowKind.UNKNOWN, inputs={"x": 1, "m": 1})
    assert plan_rows(inputs, outputs, unknown) is FIRST_AXIS


def test_inputs_are_made_with_their_rows_where_they_are() -> None:
    """Each request has one row of them, and all values that are the same for every row."""
    specs = [
        TensorSpec("steps", "FP32", ("T", "N", 2)),
        TensorSpec("state", "FP32", (2, "N", 3)),
        TensorSpec("gain", "FP32", ()),
    ]
    trial = Trial(specs, 4, axes={"steps": 1, "state": 1, "gain": None})
    feeds = trial.feeds(5)
    assert [array.shape for array in feeds.values()] == [(4, 5, 2), (2, 5, 3), ()]
    requests = trial.requests(5)
    assert [array.shape for array in requests[0].values()] == [(4, 1, 2), (2, 1, 3), ()]
    joined = np.concatenate([one["steps"] for one in requests[-2:]], 1)
    np.testing.assert_array_equal(joined, trial.feeds(2)["steps"])
    assert all(one["gain"] == feeds["gain"] for one in requests)


@given(
    seconds=st.dictionaries(
        st.sampled_from([1, 2, 4, 8, 16, 32]), st.floats(1e-6, 1.0), min_size=1
    ).filter(lambda table: 1 in table),
    budget=st.floats(1e-6, 1.0),
)
def test_the_chosen_size_is_the_smallest_nearly_best_within_budget(
    seconds: dict[int, float], budget: float
) -> None:
    """Nothing smaller is nearly as fast per row, and the run fits the budget unless it is 1."""
    chosen = choose_size(seconds, budget)
    allowed = {n: taken for n, taken in seconds.items() if taken <= budget or n == 1}
    assert chosen in allowed
    best = max(n / taken for n, taken in allowed.items())
    assert chosen / seconds[chosen] >= 0.9 * best
    assert all(n / taken < 0.9 * best for n, taken in allowed.items() if n < chosen)


@given(rows=st.integers(1, 10_000))
def test_an_estimate_lies_on_the_line_through_what_was_measured(rows: int) -> None:
    """Exact where it was measured, between neighbours elsewhere, never below a single row's."""
    found_out = Profile({1: 1.0, 2: 1.5, 4: 2.0}, 4)
    estimate = found_out.seconds_for(rows)
    assert estimate >= 1.0
    if rows in found_out.seconds:
        assert estimate == found_out.seconds[rows]
    elif rows > 4:
        assert estimate == pytest.approx(2.0 + 0.25 * (rows - 4))


@pytest.mark.parametrize(
    ("seconds", "chosen", "enough"),
    [
        ({1: 0.004, 2: 0.006, 4: 0.011, 8: 0.022}, 4, 4.0),  # 8 were no better
        ({1: 0.001, 2: 0.001, 4: 0.002}, 4, 100.0),  # none larger was tried: 50 ms of such rows
        ({1: 0.2}, 1, 1.0),  # over the budget as it is
    ],
)
def test_enough_work_for_a_run_is_that_of_the_chosen_rows(
    seconds: dict[int, float], chosen: int, enough: float
) -> None:
    """Counted in rows of the length that was tried; where all rows are alike there is no need."""
    policy = BatchPolicy(latency_budget_ms=50)
    assert Profile(seconds, chosen, "", 32).row_cost(policy) == RowCost(32, enough)
    assert Profile(seconds, chosen, "").row_cost(policy) is None
    assert Profile({}, 1, "", 32).row_cost(policy) is None


def test_elements_of_a_row_are_counted_where_rows_may_be_longer(tmp_path: Path) -> None:
    """Rows may have more elements, or longer strings; otherwise nothing is counted."""
    assert tried(onnx_models.mlp(), tmp_path).row_elements == 0
    assert tried(onnx_models.variable_length(), tmp_path).row_elements == 16
    assert tried(onnx_models.strings(), tmp_path).row_elements == 1


class SlowToChange:
    """A device that takes `change` seconds more for another number of rows than before.

    Its clock is its own. A second run of `failing` rows fails, and each one after it.
    """

    def __init__(self, change: float, failing: int = 0) -> None:
        self.change, self.failing = change, failing
        self.now = 0.0
        self.rows: list[int] = []

    def run(self, feeds: Arrays) -> list[Array]:
        rows = len(feeds["x"])
        if rows == self.failing and rows in self.rows:
            raise InferenceFailed("the device is gone")
        self.now += 0.001 + 0.0001 * rows
        if self.rows and self.rows[-1] != rows:
            self.now += self.change
        self.rows.append(rows)
        return [feeds["x"]]

    def profile(
        self, policy: BatchPolicy = PLAIN, spec: TensorSpec | None = None, *, changes: bool = True
    ) -> Profile:
        specs = [spec or TensorSpec("x", "FP32", ("N", 3))]
        return measure_profile(
            self.run, find_trial(self.run, specs), specs, specs, policy,
            rows=APART, budget=30.0, clock=lambda: self.now, changes=changes,
        )  # fmt: skip


def test_where_a_change_of_rows_is_slow_runs_are_filled_up() -> None:
    """Runs are filled up to the chosen rows if that is faster; estimates are for filled runs."""
    found = SlowToChange(0.1).profile()
    assert found.change_seconds == pytest.approx(0.1)
    assert found.max_batch_size == found.filled_rows == 32
    assert found.seconds_for(1) == found.seconds_for(20) == found.seconds[32]
    assert found.seconds_for(64) > found.seconds[32]


def test_where_filling_up_takes_longer_runs_are_left_as_they_are() -> None:
    """Filling up a run of one row adds 31 rows, 3.1 ms."""
    assert SlowToChange(0.0032).profile().filled_rows == 32
    found = SlowToChange(0.003).profile()
    assert found.change_seconds == pytest.approx(0.003)
    assert found.filled_rows == 0
    assert found.seconds_for(1) == found.seconds[1]


def test_a_run_of_one_row_is_never_filled_up_to_one_nor_for_nothing() -> None:
    """More rows may have been faster by chance, or nothing is batched."""
    assert Profile({1: 0.2, 8: 0.1}, 8).filled_rows == 0
    assert Profile({1: 0.2}, 1, "why", change_seconds=0.1).filled_rows == 0


def test_a_change_counts_that_is_slow_each_time() -> None:
    """A device that keeps what it prepared, or was busy for a moment, is not taken for slow."""
    device = SlowToChange(0.1)

    def run(feeds: Arrays) -> list[Array]:
        if len(device.rows) > 20:
            device.change = 0.0
        return device.run(feeds)

    specs = [TensorSpec("x", "FP32", ("N", 3))]
    found = measure_profile(
        run, find_trial(run, specs), specs, specs, PLAIN,
        rows=APART, budget=30.0, clock=lambda: device.now, changes=True,
    )  # fmt: skip
    assert found.change_seconds == 0


def test_changes_that_nobody_notices_are_timed_once() -> None:
    """They take less than a millisecond, as on all devices that do not prepare again."""
    quick, careful = SlowToChange(0.0), SlowToChange(0.0009)
    assert quick.profile().change_seconds == careful.profile().change_seconds == 0
    unasked = SlowToChange(0.1)
    assert unasked.profile(changes=False).change_seconds == 0
    assert len(quick.rows) == len(careful.rows) == len(unasked.rows) + 2


@pytest.mark.parametrize(
    ("policy", "spec"),
    [
        (BatchPolicy(trust=True), None),  # a row that fills up would be seen by the others
        (BatchPolicy(max_batch_size=1), None),
        (PLAIN, TensorSpec("x", "FP32", ("N", "L"))),  # lengths change as well
        (PLAIN, TensorSpec("x", "FP32", (2, 3))),
    ],
)
def test_runs_that_cannot_be_filled_up_are_not(policy: BatchPolicy, spec: TensorSpec) -> None:
    """Rows may influence each other, be all alike, differ in length, or run one by one."""
    assert SlowToChange(0.1).profile(policy, spec).filled_rows == 0


def test_a_device_that_fails_while_changes_are_timed_is_profiled_all_the_same() -> None:
    """A change then counts as free."""
    device = SlowToChange(0.1, failing=8)
    found = device.profile()
    assert (found.change_seconds, found.filled_rows) == (0, 0)
    assert found.seconds[1] > 0


def test_until_changes_were_timed_requests_run_one_by_one() -> None:
    """Batches of changing sizes may be many times as slow."""
    device = SlowToChange(0.1)
    specs = [TensorSpec("x", "FP32", ("N", 3))]

    def run(feeds: Arrays) -> list[Array]:
        if device.now > 0.5:
            raise OutOfTime
        return device.run(feeds)

    found = measure_profile(
        run, find_trial(run, specs), specs, specs, PLAIN,
        rows=APART, clock=lambda: device.now, changes=True,
    )  # fmt: skip
    assert (found.complete, found.max_batch_size, found.reason) == (False, 1, MEASURING)


@given(largest=st.integers(1, 5000))
def test_sizes_double_and_end_at_the_largest(largest: int) -> None:
    """They are 1, 2, 4, … and the largest, ascending, without repetition."""
    sizes = list(sizes_up_to(largest))
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert sizes == sorted(set(sizes))


def test_made_up_rows_are_of_mixed_scale_and_the_same_every_time() -> None:
    """Neighbours differ by an order of magnitude; whole numbers are 0 or 1, no row is all 0."""
    specs = [TensorSpec("x", "FP32", ("N", 64)), TensorSpec("ids", "INT64", ("N", "L"))]
    first, second = synthetic_inputs(specs, 8, 16), synthetic_inputs(specs, 8, 16)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    scales = np.abs(first["x"]).mean(axis=1)
    assert scales.max() / scales.min() > 100
    assert set(np.unique(first["ids"])) <= {0, 1}
    assert first["ids"].any(axis=1).all()


def test_padding_that_leaves_the_answers_alone_is_kept(tmp_path: Path) -> None:
    """A model that counts padding for nothing may have its requests padded together."""
    session = opened(onnx_models.variable_length(), tmp_path)
    policy = BatchPolicy(pad={"input_ids": Padding(axis=1, value=0, multiple=8)})
    plan = pad_safely(session.run, session.inputs, session.outputs, policy)
    assert list(plan.inputs) == ["input_ids"]
    assert plan.reason == ""


def test_padding_that_changes_the_answers_is_refused() -> None:
    """A mean over the whole length counts the padding: the plan is dropped, with its reason."""

    def mean(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [feeds["x"].mean(axis=1)]

    inputs, outputs = [TensorSpec("x", "FP32", ("N", "L"))], [TensorSpec("y", "FP32", ("N",))]
    policy = BatchPolicy(pad={"x": Padding(axis=1, value=0, multiple=8)})
    plan = pad_safely(mean, inputs, outputs, policy)
    assert not plan.inputs
    assert "padding changes the outputs: output 'y'" in plan.reason


def test_padding_a_model_cannot_run_is_refused() -> None:
    """A model that accepts one length only refuses the others itself."""

    def only_5(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        if feeds["x"].shape[1] != 5:
            raise InvalidInput("five, please")
        return [feeds["x"].sum(axis=1)]

    inputs, outputs = [TensorSpec("x", "FP32", ("N", "L"))], [TensorSpec("y", "FP32", ("N",))]
    policy = BatchPolicy(pad={"x": Padding(axis=1, value=0, multiple=8)})
    assert "five, please" in pad_safely(only_5, inputs, outputs, policy).reason


def test_inputs_too_large_to_make_up_are_not_made() -> None:
    """Trial inputs have open dimensions of 1 if memory is short; too large ones are not made."""
    seen: list[tuple[int, ...]] = []

    def take(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        seen.append(feeds["x"].shape)
        return [feeds["x"]]

    find_trial(take, [TensorSpec("x", "FP32", (None,) * 64)])
    assert seen == [(1,) * 64]
    trial = find_trial(take, [TensorSpec("x", "FP32", ("N", 1 << 20, 1 << 20))])
    assert "would take 1099511627776 elements" in trial.problem


@pytest.mark.parametrize("datatype", ["INT4", "UINT2"])
def test_small_whole_numbers_are_made_up_as_others_are(datatype: str) -> None:
    """They are also 0 or 1: most whole numbers are indices or masks."""
    made = synthetic_inputs([TensorSpec("x", datatype, ("N", 50))], 2, 16)["x"]
    assert set(made.astype(int).ravel().tolist()) == {0, 1}


def test_model_that_takes_a_sequence_is_not_tried() -> None:
    """There is nothing to make up, and that is the reason given."""
    inputs = [TensorSpec("x", "seq(tensor(float))", None)]
    found = profiled(lambda _: [], inputs, [])
    assert "seq(tensor(float))" in found.reason


class Clocked:
    """Runs on a simulated clock, until their time has ended."""

    def __init__(self, runs: int, seconds: float, model: Callable[[Array], Array]) -> None:
        self.now, self._left, self._seconds, self._model = 0.0, runs, seconds, model

    def run(self, feeds: Arrays) -> list[Array]:
        if not self._left:
            raise OutOfTime
        self._left -= 1
        self.now += self._seconds
        return [self._model(feeds["x"])]

    def profile(self) -> Profile:
        spec = [TensorSpec("x", "FP32", ("N", 2))]
        trial = Trial(spec, 16, seconds=self._seconds)
        return measure_profile(
            self.run, trial, spec, spec, PLAIN, rows=APART, clock=lambda: self.now
        )


@given(runs=st.integers(0, 80))
def test_what_there_was_no_time_for_is_not_taken_for_granted(runs: int) -> None:
    """Rows that influence each other never share a run; others do once that was seen."""
    influenced = Clocked(runs, 0.001, lambda x: x - x.astype("f4").mean(axis=0)).profile()
    assert influenced.max_batch_size == 1
    assert influenced.reason
    apart = Clocked(runs, 0.001, lambda x: x).profile()
    assert apart.seconds[1] == pytest.approx(0.001)
    assert (apart.max_batch_size > 1) is (not apart.reason)
    if not apart.complete:
        assert apart.reason in ("", MEASURING)
    elif apart.max_batch_size == 1:
        raise AssertionError("its runs take as long with more rows")


def test_a_run_longer_than_the_latency_budget_is_not_tried_with_more_rows() -> None:
    """Nothing that could be found out would change anything."""
    clocked = Clocked(1000, 0.2, lambda x: x)
    found = clocked.profile()
    assert "latency_budget_ms" in found.reason
    assert list(found.seconds) == [1]
    assert clocked.now < 1.0


def test_brief_runs_end_in_time(tmp_path: Path) -> None:
    """The run ends before one that would be too long, or at its next node."""
    session = opened(onnx_models.slow(nodes=2000), tmp_path)
    feeds = synthetic_inputs(session.inputs, 1, 16)
    with BriefRuns(60.0, before=61.0) as runs, pytest.raises(OutOfTime):
        runs.of(session)(feeds)
    with BriefRuns(0.01) as runs, pytest.raises(OutOfTime):
        runs.of(session)(feeds)
