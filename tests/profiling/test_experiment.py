"""Requests run together and alone: what shows that they influence each other, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from structlog.testing import capture_logs

from cohort.batching import BatchPolicy, RowPlan, Sample
from cohort.errors import InferenceFailed, InvalidInput
from cohort.profiling import Trial, influence, influenced, measure_profile
from cohort.profiling.contradictions import report_contradiction
from cohort.row_independence import OutputRows, RowKind, RowVerdict
from cohort.session import Opener
from cohort.tensors import Array, Arrays, TensorSpec
from tests import onnx_models

Model = Callable[[Arrays], list[Array]]

ROWS = 8
NUMBER = count()

FLOATS = TensorSpec("x", "FP32", ("N", 4))
BYTES = TensorSpec("x", "UINT8", ("N", 4))
IDS = TensorSpec("x", "INT64", ("N", 4))
TEXT = TensorSpec("x", "BYTES", ("N",))
INFLUENCED = "rows influence each other: output 'y0' of a row changes"


def said_of(
    model: Model, spec: TensorSpec, outputs: int = 1, tables: Mapping[str, int] | None = None
) -> str:
    """Return the reason found for a model with this input."""
    specs = [TensorSpec(f"y{number}", "FP32", (None,)) for number in range(outputs)]
    trial = Trial([spec], 4, tables=tables or {})
    return influence(model, trial.requests(ROWS), specs)


def numbers(feeds: Arrays) -> NDArray[np.float32]:
    """Return the input as floats."""
    return feeds["x"].astype(np.float32)


def scaled_by_all(feeds: Arrays) -> list[Array]:
    """By the largest of the run."""
    x = numbers(feeds)
    return [np.asarray(x / np.maximum(np.max(x), 1))]


def boxes_beside_scores(feeds: Arrays) -> list[Array]:
    """Pixels, and a score by the rank of the row in the run."""
    x = numbers(feeds)
    rank = np.argsort(np.argsort(np.sum(x, 1)))[:, None]
    return [np.concatenate([np.full(x.shape, 640.0), 1 / (1.0 + rank)], axis=1)]


def padded_texts(feeds: Arrays) -> list[Array]:
    """Return the words of texts, as many as the longest one has."""
    words = [str(text).split() for text in feeds["x"]]
    longest = max(map(len, words))
    return [np.array([each + [""] * (longest - len(each)) for each in words], object)]


def cleared_by_large_ids(feeds: Arrays) -> list[Array]:
    """Where the row before has an id above 100."""
    x = numbers(feeds)
    return [np.where(np.roll(x, 1, axis=0) > 100, 0, x)]


def stopped_together(feeds: Arrays) -> list[Array]:
    """Halved until all rows are small."""
    x = numbers(feeds)
    while np.max(np.abs(x)) > 1:
        x = np.asarray(x / 2, np.float32)
    return [x]


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        (scaled_by_all, BYTES),
        (scaled_by_all, FLOATS),
        (boxes_beside_scores, FLOATS),
        (padded_texts, TEXT),
        (cleared_by_large_ids, IDS),
        (stopped_together, FLOATS),
    ],
)
def test_rows_that_influence_each_other_show(model: Model, spec: TensorSpec) -> None:
    """Values of every size, places in a whole table, and texts of different lengths show it."""
    assert said_of(model, spec, tables={"x": 1000} if spec is IDS else None) == INFLUENCED


def test_a_result_that_differs_each_time_is_not_called_influence() -> None:
    """The same request is run twice alone."""
    said = said_of(lambda feeds: [numbers(feeds) + np.float32(next(NUMBER))], FLOATS)
    assert said == "it gives another result each time: output 'y0' of a row changes"


def test_rows_that_are_counted_wrongly_show() -> None:
    """A row of an output may belong to no row of the inputs."""
    said = said_of(lambda feeds: [numbers(feeds).reshape(-1)], FLOATS)
    assert said == "output 'y0' has shape [32] for 8 rows of input"


def test_rounding_is_no_influence() -> None:
    """The rest of large numbers that cancel out is not influence either."""

    def rounded(feeds: Arrays) -> list[Array]:
        x = numbers(feeds)
        noise = np.float32(1e-6 * len(x))
        left = np.max(np.abs(x), 1, keepdims=True) * noise
        return [x * (1 + noise), np.concatenate([x, left], 1)]

    assert said_of(rounded, FLOATS, outputs=2) == ""


def test_a_run_of_another_size_may_round_in_another_way() -> None:
    """Kernels and quantization round by the place in a run, whatever the other rows are."""

    def by_place(feeds: Arrays) -> list[Array]:
        x = numbers(feeds)
        odd = (np.arange(len(x)) % 2 * min(len(x) - 1, 1))[:, None]
        step = np.max(np.abs(x), 1, keepdims=True) / 128
        return [np.concatenate([x, step * odd], 1)]

    assert said_of(by_place, FLOATS) == ""


def test_the_number_of_rows_may_not_count() -> None:
    """It must not count even if the contents of other rows make no difference."""
    said = said_of(lambda feeds: [numbers(feeds) * np.float32(len(feeds["x"]))], FLOATS)
    assert said == "a run of 8 rows gives other results: output 'y0' of a row changes"


def score_by_count(feeds: Arrays) -> list[Array]:
    """Pixels, and a score by the number of rows."""
    x = numbers(feeds)
    score = np.full((len(x), 1), 0.9 / len(x))
    return [np.concatenate([np.full(x.shape, 640.0), score], axis=1)]


def one_more_in_larger_runs(feeds: Arrays) -> list[Array]:
    """Whole numbers of which one is another, as where 0.5 is rounded after another rounding."""
    rows = len(feeds["x"])
    return [np.array([[100, 7 + min(rows - 1, 1), 3, 50]] * rows, np.uint8)]


@pytest.mark.parametrize("model", [score_by_count, one_more_in_larger_runs])
def test_how_much_the_number_of_rows_may_change_depends_on_the_proof(model: Model) -> None:
    """A proven one rounds once more; in another, a score may depend on other rows' pixels."""
    request: Arrays = {"x": np.ones((1, 4))}
    together = model({"x": np.ones((8, 4))})[0][3:4]
    sample = Sample(request, [together], 3, 8)
    specs = [TensorSpec("y", "FP32", (None,))]
    assert influenced(model, sample, model(request), specs) == ""
    said = influenced(model, sample, model(request), specs, proven=False)
    assert said == "a run of 8 rows gives other results: output 'y' of a row changes"


def test_requests_that_the_model_refuses_do_not_count() -> None:
    """The others are still compared; if no request is left, there is no finding."""

    def only_bits(feeds: Arrays) -> list[Array]:
        x = numbers(feeds)
        if np.max(x) > 1:
            raise InvalidInput("no such token")
        return [x - np.mean(x, 0)]

    def nothing(feeds: Arrays) -> list[Array]:
        raise InvalidInput("no")

    assert said_of(only_bits, IDS) == INFLUENCED
    assert said_of(nothing, IDS) == ""


def test_examples_are_tried_first_beside_others_of_their_shapes() -> None:
    """With any number of rows, real values may show more than generated ones."""
    spec = TensorSpec("x", "INT64", ("N", "L"))
    example: Arrays = {"x": np.full((3, 7), 5000)}
    trial = Trial([spec], 4, examples=[example])

    def by_real_ids(feeds: Arrays) -> list[Array]:
        x = numbers(feeds)
        return [x + 1000 * (np.max(x) > 4000)]

    assert influence(by_real_ids, Trial([spec], 4).requests(ROWS), [spec]) == ""
    assert "output 'x' of a row" in influence(by_real_ids, trial.requests(ROWS), [spec])


@given(rows=st.integers(2, 10))
def test_no_two_requests_are_alike(rows: int) -> None:
    """Trial requests of every datatype differ from each other."""
    for spec in (FLOATS, BYTES, IDS, TensorSpec("x", "FP16", ("N", 3, 5)), TEXT):
        requests = Trial([spec], 4).requests(rows)
        assert len(requests) == rows
        assert len({str(one["x"].tolist()) for one in requests}) == rows


def test_requests_are_joined_as_they_are_when_served() -> None:
    """Along the axes that rows have: another one would mix what does not belong together."""
    trial = Trial([TensorSpec("x", "FP32", ("T", "N"))], 4, axes={"x": 1})
    plan = RowPlan({"x": 1}, [OutputRows(1)])
    specs = [TensorSpec("y", "FP32", (None, None))]

    def summed_up(feeds: Arrays) -> list[Array]:
        return [np.cumsum(numbers(feeds), axis=0)]

    assert influence(summed_up, trial.requests(4), specs, stacking=plan) == ""
    assert influence(summed_up, trial.requests(4), specs) != ""


def test_what_contradicts_a_proof_is_an_error_with_its_requests(tmp_path: Path) -> None:
    """It is a bug of the proof: it is logged, and saved to a file readable without pickle."""
    proven = RowVerdict(RowKind.PROVEN)
    trial = Trial([FLOATS], 4)
    profile = measure_profile(
        scaled_by_all,
        trial,
        [FLOATS],
        [TensorSpec("y", "FP32", ("N", 4))],
        BatchPolicy(),
        rows=proven,
    )
    assert (profile.max_batch_size, profile.reason) == (1, INFLUENCED.replace("y0", "y"))
    path = onnx_models.save(onnx_models.identity(), tmp_path / "m/1/model.onnx")
    opener = Opener(path, cache=tmp_path / "cache")
    opener.read()
    with capture_logs() as lines:
        report_contradiction(opener, profile.contradicted_by, profile.reason)
    (line,) = lines
    assert (line["log_level"], line["model"], line["version"]) == ("error", "m", "1")
    with np.load(line["requests"]) as kept:
        assert len(kept.files) == len(profile.contradicted_by)
        np.testing.assert_array_equal(kept["0/x"], profile.contradicted_by[0]["x"])


def test_an_unknown_models_influence_contradicts_nothing() -> None:
    """A run that fails does not contradict a proof either."""
    unknown, proven = RowVerdict(RowKind.UNKNOWN), RowVerdict(RowKind.PROVEN)

    def fails_together(feeds: Arrays) -> list[Array]:
        if len(feeds["x"]) > 1:
            raise InferenceFailed("no memory")
        return [feeds["x"]]

    specs = [TensorSpec("y", "FP32", ("N", 4))]
    for model, verdict, policy in (
        (scaled_by_all, unknown, BatchPolicy(trust=True)),
        (fails_together, proven, BatchPolicy()),
    ):
        trial = Trial([FLOATS], 4)
        profile = measure_profile(model, trial, [FLOATS], specs, policy, rows=verdict)
        assert not profile.contradicted_by
