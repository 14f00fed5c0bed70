"""Work in other threads that is ended early."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.session import CancellationToken, Opener, Provider, WorkCancelled
from tests import onnx_models


def test_cancelling_calls_what_ends_the_work() -> None:
    """Current and later work is ended; finished work is not."""
    token = CancellationToken()
    ended: list[str] = []
    with token.calling(lambda: ended.append("left")):
        pass
    with token.calling(lambda: ended.append("inside")):
        token.cancel("enough")
    with token.calling(lambda: ended.append("late")):
        pass
    assert ended == ["inside", "late"]


def test_the_first_reason_counts() -> None:
    """It is what the work ends with."""
    token = CancellationToken()
    token.check()
    token.enter("one stage")
    token.cancel("first")
    token.cancel("second")
    with pytest.raises(WorkCancelled, match="first"):
        token.enter("another stage")
    assert token.stage == "one stage"


def test_no_link_of_a_chain_is_tried_after_cancelling(tmp_path: Path) -> None:
    """The cancellation is not mistaken for a failure of the model."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "m" / "1" / "model.onnx")
    token = CancellationToken()
    token.cancel("enough")
    opener = Opener(path, chain=(Provider("cpu"), Provider("cpu")), token=token)
    with pytest.raises(WorkCancelled, match="enough"):
        opener.open()
