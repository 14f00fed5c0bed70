"""Log lines about versions, and their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import structlog
from structlog.testing import capture_logs

from cohort.process import registry_log
from cohort.process.registry_log import RegistryLog
from cohort.process.startup import StartUp
from cohort.registry import (
    VersionEntry,
    VersionFailed,
    VersionMeasured,
    VersionReady,
    VersionUnloaded,
)
from cohort.row_independence import RowKind, RowVerdict
from cohort.session import Fallback, Placement, default_chain
from cohort.settings import Settings
from tests.engines import ControlledEngine, make_entry, make_registry

NO_CUDA = Placement(("cuda", "cpu"), "cpu", (Fallback("cuda", "no device"),), {"cpu": 1})


@pytest.fixture(autouse=True)
def _own_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no other test has bound for good."""
    monkeypatch.setattr(registry_log, "log", structlog.get_logger("cohort"))


def make_log(models: Mapping[str, Sequence[VersionEntry]], *, tabled: bool = False) -> RegistryLog:
    """Return the log of these models, with a table that will name them, or has done so."""
    table = StartUp(Settings(), default_chain(["cpu"]))
    table.pending = tabled
    return RegistryLog(make_registry(models), table)


def logged(tabled: bool) -> Counter[str]:
    """Count the lines of each kind when three similar versions load, and one does not."""
    entry = make_entry(1, ControlledEngine(placement=NO_CUDA))
    entry = replace(entry, batching_off="rows influence each other")
    log = make_log({name: [entry] for name in "abc"}, tabled=tabled)
    with capture_logs() as lines:
        for name in "abc":
            log.observe(VersionReady(name, entry, 0.1))
            log.observe(VersionMeasured(name, entry))
        log.observe(VersionFailed("d", 1, "broken", serving=False))
    return Counter(line["event"] for line in lines)


def test_each_thing_is_logged_once() -> None:
    """Why a provider cannot be had for all versions, why no run is shared for each of them."""
    assert logged(tabled=False) == {
        "version ready": 3,
        "provider fell back": 1,
        "requests run one by one": 3,
        "version measured": 3,
        "version unavailable": 1,
    }


def test_what_a_table_says_is_not_logged() -> None:
    """On a terminal, the first versions are rows with footnotes for the reasons."""
    assert logged(tabled=True) == {"version measured": 3}


def test_a_version_that_is_loaded_again_is_logged_again() -> None:
    """Its files are others, be the reason the same."""
    entry = replace(make_entry(1, ControlledEngine()), batching_off="rows influence each other")
    log = make_log({"a": [entry]})
    with capture_logs() as lines:
        log.observe(VersionReady("a", entry, 0.1))
        log.observe(VersionUnloaded("a", 1))
        log.observe(VersionReady("a", entry, 0.1))
    assert [line["event"] for line in lines].count("requests run one by one") == 2


def test_a_version_that_cannot_batch_beside_one_that_can_is_told() -> None:
    """It takes more of the machine for the same requests: before a rollout gives it all callers."""
    proven = ControlledEngine(rows=RowVerdict(RowKind.PROVEN))
    mixing = ControlledEngine(rows=RowVerdict(RowKind.REFUTED, "ReduceMax 'low'", "it takes …"))
    single = replace(make_entry(2, mixing), batching_off="rows may influence each other")
    log = make_log({"a": [make_entry(1, proven), single], "b": [single]})
    with capture_logs() as lines:
        log.observe(VersionReady("a", single, 0.1))
        log.observe(VersionReady("a", make_entry(1, proven), 0.1))
        log.observe(VersionReady("b", single, 0.1))
        log.observe(VersionReady("a", single, 0.1))
        log.observe(VersionUnloaded("a", 1))
        log.observe(VersionReady("a", single, 0.1))
    (lost,) = [line for line in lines if line["event"] == "batching is lost"]
    assert (lost["model"], lost["version"], lost["version_with_it"]) == ("a", 2, 1)
    assert lost["reason"] == "rows may influence each other"
