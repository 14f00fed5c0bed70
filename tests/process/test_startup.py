"""Output at start-up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from rich.table import Table

from cohort.connections.addresses import address_for_people
from cohort.process import logs, startup
from cohort.process.startup import StartUp
from cohort.process.version_table import Footnotes
from cohort.registry import Catalog
from cohort.repository import Problem, Snapshot
from cohort.session import DefaultChain, Fallback, Placement, default_chain
from cohort.settings import Settings
from tests.engines import ControlledEngine, make_catalog, make_entry

HERE = "http://127.0.0.1:9000"
NO_GPU = replace(default_chain(["cpu"]), reason="no NVIDIA device is seen")


@pytest.fixture(autouse=True)
def _own_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is bound here is bound for good, to where these tests have it write."""
    monkeypatch.setattr(startup, "log", structlog.get_logger("cohort"))


def shown(
    capsys: pytest.CaptureFixture[str],
    catalog: Catalog,
    *problems: Problem,
    chain: DefaultChain = NO_GPU,
    ready: bool = True,
) -> str:
    """Return the text on standard error, where people read the log."""
    settings = Settings(models=Path("models"), log_format="console")
    with logs.configured("console"):
        start_up = StartUp(settings, chain)
        start_up.begin(HERE)
        if ready:
            start_up.report_ready()
        start_up.show(catalog, Snapshot({}, tuple(problems)))
        if ready:
            start_up.report_ready()
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_each_version_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """The row has state, inputs, provider and batch size; the address follows."""
    text = shown(capsys, make_catalog({"iris": [make_entry(3, ControlledEngine())]}))
    (row,) = [line for line in text.splitlines() if "iris" in line]
    for cell in ("3", "READY", "x FP32", "cpu", "up to 32"):
        assert cell in row
    assert text.index(row) < text.index("no NVIDIA device is seen") < text.index(HERE)
    assert text.count(f"Serving on {HERE}") == 1
    assert "ready" in text.split(HERE)[-1], "when it is ready another time, the log says so"


def test_the_address_is_below_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the process becomes ready while a thread still makes the table."""
    start_up = StartUp(Settings(models=Path("models"), log_format="console"), NO_GPU)
    make_table = startup.make_table

    def meanwhile(catalog: Catalog, notes: Footnotes) -> Table:
        start_up.report_ready()
        return make_table(catalog, notes)

    monkeypatch.setattr(startup, "make_table", meanwhile)
    with logs.configured("console"):
        start_up.begin(HERE)
        start_up.show(make_catalog({"iris": [make_entry(3, ControlledEngine())]}), Snapshot({}, ()))
    text = capsys.readouterr().err
    assert text.index("iris") < text.index(HERE)
    assert text.count(HERE) == 2  # the address, and its page to try it


def test_reasons_are_footnotes_each_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Failures, fallbacks and losses of batching are notes; rows with the same note share it."""
    placement = Placement(("cuda", "cpu"), "cpu", (Fallback("cuda", "no GPU"),))
    engine = ControlledEngine(placement=placement)
    unbatched = replace(make_entry(1, engine), batching_off="rows [0] influence each other")
    problem = Problem("b/config.yaml", "", "bad")
    text = shown(
        capsys,
        make_catalog(
            {
                "a": [unbatched, make_entry(2, engine)],
                "b": [make_entry(1, reason=str(problem))],
            }
        ),
        problem,
    )
    assert text.count("instead of cuda: no GPU") == 1
    assert "rows [0] influence each other" in text, "markup in a reason is printed as it is"
    assert text.count("b/config.yaml: bad") == 1, "a problem of a version is one thing"
    assert "UNAVAILABLE (3)" in text


def test_a_model_that_a_provider_does_not_suit_is_no_fallback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The note gives the reason for its device, and not that it should be elsewhere."""
    unsuited = Fallback("cuda", "it runs no node", missed=False)
    engine = ControlledEngine(placement=Placement(("cuda", "cpu"), "cpu", (unsuited,)))
    text = shown(capsys, make_catalog({"a": [make_entry(1, engine)]}))
    assert "(1) cuda: it runs no node" in text


def test_nothing_to_serve_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no address, since nothing is served, and no table without rows."""
    text = shown(capsys, {}, ready=False)
    assert text.startswith("! models: has no model; put one at <name>/1/model.onnx in it")
    assert HERE not in text
    problem = Problem("models/m/config.yaml", "batching.max_batchsize", "is not an option")
    text = shown(capsys, {}, problem, ready=False)
    assert "batching.max_batchsize" in text
    assert "has no model" not in text


@pytest.mark.parametrize("chain", [NO_GPU, default_chain(["cpu"])])
def test_a_json_log_has_a_line_for_each_thing(
    chain: DefaultChain, capsys: pytest.CaptureFixture[str]
) -> None:
    """Why a build for GPUs runs on the CPU is one of them, however many models there are."""
    with logs.configured("json"):
        start_up = StartUp(Settings(log_format="json"), chain)
        start_up.begin(HERE)
        assert not start_up.pending, "a line for each version is logged instead of a table"
        start_up.show(make_catalog({"m": [make_entry(1, ControlledEngine())]}), Snapshot())
        start_up.report_ready()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line.get("reason", "") for line in lines if line["event"] == "models run on the CPU"]
    assert told == ([chain.reason] if chain.reason else [])
    assert [line["event"] for line in lines[-2:]] == ["first models loaded", "ready"]


def test_a_json_log_names_a_folder_that_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be mistyped, or not mounted; unless an operator wants it so."""
    with logs.configured("json"):
        settings = Settings(models=Path("modles"), log_format="json")
        StartUp(settings, default_chain(["cpu"])).show({}, Snapshot())
        wanted = settings.model_copy(update={"allow_empty": True})
        StartUp(wanted, default_chain(["cpu"])).show({}, Snapshot())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (problem,) = [line["problem"] for line in lines if "problem" in line]
    assert problem.startswith("modles: has no model")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://localhost:80"),
        ("::1", "http://[::1]:80"),
        ("[::1]", "http://[::1]:80"),
        ("::", "http://localhost:80"),
        ("127.0.0.2,::1", "http://127.0.0.2:80"),
    ],
)
def test_the_address_is_one_that_a_browser_opens(host: str, address: str) -> None:
    """Which the address that means all of them is not."""
    assert address_for_people(Settings(host=host), 80, tls=False) == address
    told = address_for_people(Settings(host=host), 80, tls=True)
    assert told == address.replace("http", "https")
