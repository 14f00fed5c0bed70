"""The start-up table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.main import logs
from app.main.startup import show_models
from app.registry import Catalog
from app.repository import Problem, Snapshot
from app.session import Placement
from app.session.running import Fallback
from app.settings import Settings
from tests.engines import ControlledEngine, make_catalog, make_entry


def shown(
    capsys: pytest.CaptureFixture[str], catalog: Catalog, *problems: Problem, form: str = "console"
) -> str:
    """What is printed on standard error."""
    settings = Settings(models=Path("models"), log_format=form, port=9000)
    with logs.configured("console"):
        show_models(catalog, Snapshot({}, tuple(problems)), settings)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_each_version_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """With its state, tensors, provider and batch size; and where it is served."""
    text = shown(capsys, make_catalog({"iris": [make_entry(3, ControlledEngine())]}))
    (row,) = [line for line in text.splitlines() if "iris" in line]
    for cell in ("3", "READY", "x FP32", "y FP32", "cpu", "up to 32"):
        assert cell in row
    assert "http://127.0.0.1:9000" in text


def test_reasons_are_footnotes_each_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure, a fallback and a loss of batching; what two rows share is one note."""
    placement = Placement(("cuda", "cpu"), "cpu", (Fallback("cuda", "no GPU"),))
    engine = ControlledEngine(placement=placement)
    unbatched = replace(make_entry(1, engine), batching_off="rows [0] influence each other")
    text = shown(
        capsys,
        make_catalog({"a": [unbatched, make_entry(2, engine)], "b": [make_entry(1, reason="bad")]}),
    )
    assert text.count("no GPU") == 1
    assert "rows [0] influence each other" in text, "markup in a reason is printed as it is"
    assert "bad" in text
    assert "UNAVAILABLE" in text


def test_problems_and_an_empty_folder_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do about it."""
    problem = Problem("models/m/config.yaml", "batching.max_batchsize", "is not an option")
    text = shown(capsys, {}, problem)
    assert "batching.max_batchsize" in text
    assert "put models/<name>/1/model.onnx" in text


def test_nothing_is_printed_beside_a_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    """That log has a line for each version instead."""
    assert (
        shown(capsys, make_catalog({"m": [make_entry(1, ControlledEngine())]}), form="json") == ""
    )
