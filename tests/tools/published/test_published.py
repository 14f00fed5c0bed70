"""`make published` counts answers that differ, and serves a package's model as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cohort.tensors import Array
from tests import onnx_models
from tests.e2e.asking import APIS, CALLERS
from tests.e2e.processes import cohort, free_port
from tools.published.__main__ import breaks
from tools.published.packages import PublishedModel
from tools.published.trying import FEW_ROUNDS, Outcome, find_questions, try_model

EXPECTED = np.array([[1.0, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("got", "counted"),
    [
        (EXPECTED.copy(), (0, 0, 0)),
        (np.nextafter(EXPECTED, np.float32(3)), (1, 0, 0)),
        (EXPECTED * np.float32(1.05), (1, 1, 0)),
        (EXPECTED + np.float32(1), (1, 1, 1)),
        (EXPECTED[:, :1], (1, 1, 1)),
    ],
    ids=["same bits", "last bit", "rounded once more", "another", "another shape"],
)
def test_differences_are_counted_by_how_far_they_go(got: Array, counted: tuple[int, ...]) -> None:
    """Any other bit, more than the order of additions explains, and more than rounding does."""
    outcome = Outcome()
    outcome.judge([{"y": EXPECTED}], [{"y": got}])
    assert outcome.compared == 1
    assert (outcome.other_bits, outcome.rounded, outcome.wrong) == counted


@pytest.mark.parametrize(
    ("default", "exact", "broken"),
    [
        (Outcome(), Outcome(), False),
        (Outcome(wrong=1), Outcome(), True),
        (Outcome(), Outcome(other_bits=1), True),
        (Outcome(other_bits=1, batching={"exact": False}), Outcome(), False),
        (Outcome(other_bits=1, batching={"exact": True}), Outcome(), True),
    ],
)
def test_other_bits_break_a_promise_where_there_is_one(
    default: Outcome, exact: Outcome, broken: bool
) -> None:
    """With the default config, this applies if the server reports exact answers."""
    assert breaks(default, exact) is broken


async def test_a_model_is_asked_alone_and_together_over_each_api(tmp_path: Path) -> None:
    """One has external weights. Its callers share no run, so that there are few rounds."""
    made = onnx_models.dynamically_quantized()
    path = onnx_models.save_with_external_data(made, tmp_path / "package/folder/quantized.onnx")
    PublishedModel("package 1.0", "quantized", path).place(tmp_path / "models/quantized", "")
    questions = find_questions(path)
    with cohort(tmp_path / "models", tmp_path, grpc_port=free_port()) as server:
        outcome = await try_model(server, "quantized", questions, rounds=20, seconds=60)
    assert (outcome.problem, outcome.batching["on"]) == ("", False)
    assert outcome.rounds == [FEW_ROUNDS] * len(APIS)
    assert outcome.asked == outcome.runs == FEW_ROUNDS * len(APIS) * CALLERS
    assert outcome.compared == (FEW_ROUNDS + 1) * len(APIS) * CALLERS
    assert (outcome.other_bits, outcome.wrong) == (0, 0)
