"""`cohort plan` with the started command, and profiles as `cohort profile --json` prints them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cohort.cli.plan_command import plan as plan_command
from cohort.planning import (
    Queue,
    ReplicaRuns,
    Unreachable,
    UnreadableProfile,
    Wanted,
    plan_replicas,
    read_profile,
)
from tests.e2e.processes import MODELS

PROFILE = {
    "model": "churn",
    "batching_off": "",
    "profile": {
        "seconds_by_rows": {"1": 0.010, "2": 0.011, "4": 0.012, "8": 0.020},
        "chosen_rows": 4,
        "concurrency": [],
    },
}


def run_of(at_once: int, seconds: float, rows: int = 1) -> dict[str, float]:
    """Return concurrent runs as a profile has them."""
    rate = at_once * rows / seconds
    taken = {"threads": 1, "rows": rows, "at_once": at_once, "seconds": seconds}
    return {**taken, "rows_per_second": rate}


def written(folder: Path, **changes: Any) -> Path:
    """Write a profile with these changes."""
    path = folder / "profile.json"
    profile = {**PROFILE["profile"], **changes.pop("profile", {})}  # type: ignore[dict-item]
    path.write_text(json.dumps({**PROFILE, **changes, "profile": profile}))
    return path


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `cohort` with these arguments and --json; return its exit code and its answer."""
    line = [sys.executable, "-m", "cohort", *arguments, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def plan(path: Path, rate: float, p99: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Run `cohort plan`."""
    return command("plan", "--rate", str(rate), "--p99", p99, "--profile", str(path), *more)


def test_the_plan_of_a_measured_profile_meets_its_time(tmp_path: Path) -> None:
    """`cohort profile --json` of a bundled model is a profile for `cohort plan`."""
    line = [sys.executable, "-m", "cohort", "profile", "digits", "--json"]
    line += ["--models", str(MODELS), "--cache", str(tmp_path / "cache")]
    path = tmp_path / "digits.json"
    path.write_bytes(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)
    status, found = plan(path, 1e6, "50ms", "--spare", "2")
    runs = read_profile(path)
    assert status == 0
    assert found["p99_ms"] <= 50
    assert (found["replicas"] - 2) * runs.at_once * found["load"] == pytest.approx(
        1e6 * runs.seconds
    )
    assert found["shared_runs"]["replicas"] <= found["replicas"]


def test_the_plan_has_the_fewest_replicas_that_are_in_time(tmp_path: Path) -> None:
    """100 requests/s of 10 ms in 50 ms need two replicas, and a third brings 50 to 15 ms."""
    path = written(tmp_path, batching_off="the graph mixes rows")
    assert plan(path, 100, "50ms")[1]["replicas"] == 2
    status, found = plan(path, 100, "15ms")
    assert (status, found["replicas"]) == (0, 4)
    assert found["p99_ms"] <= 15
    assert found["simulated_p99_ms"] <= 15
    assert found["shared_runs"] is None


def test_a_time_below_that_of_a_run_is_unreachable(tmp_path: Path) -> None:
    """The command exits with 1 and reports that more replicas do not help."""
    status, found = plan(written(tmp_path), 10, "9ms")
    assert status == 1
    assert "10 ms without any wait" in found["error"]


def test_a_rate_beyond_all_planning_is_refused_at_once(tmp_path: Path) -> None:
    """The work of the command is bounded."""
    status, found = plan(written(tmp_path), 1e9, "1s")
    assert status == 1
    assert "divide the rate" in found["error"]


def test_cost_follows_the_replicas(tmp_path: Path) -> None:
    """The price of an hour is that of all replicas; a million requests take 1e6/rate seconds."""
    found = plan(written(tmp_path), 1000, "50ms", "--cost", "2", "--spare", "1")[1]
    assert found["cost_per_hour"] == 2 * found["replicas"]
    assert found["cost_per_million_requests"] == pytest.approx(found["cost_per_hour"] / 3.6)


def test_the_concurrent_runs_of_a_profile_are_servers(tmp_path: Path) -> None:
    """A replica with four runs at a time, each twice as slow, does the work of two."""
    concurrency = [run_of(1, 0.010), run_of(4, 0.020)]
    runs = read_profile(written(tmp_path, profile={"concurrency": concurrency}))
    assert (runs.at_once, runs.seconds) == (4, 0.020)
    assert runs.seconds_by_requests[4] == 0.024


def test_a_gain_that_is_small_is_not_used(tmp_path: Path) -> None:
    """As the profile's table does, the plan prefers fewer runs if they are nearly as fast."""
    concurrency = [run_of(1, 0.010), run_of(2, 0.0195)]
    assert read_profile(written(tmp_path, profile={"concurrency": concurrency})).at_once == 1


def test_requests_of_several_rows_take_their_run(tmp_path: Path) -> None:
    """Two rows fill half of the chosen run; three take the next measured size."""
    path = written(tmp_path)
    assert read_profile(path, 2).seconds_by_requests == {1: 0.011, 2: 0.012}
    assert read_profile(path, 3).seconds == 0.012
    with pytest.raises(UnreadableProfile, match="its largest run has 8 rows"):
        read_profile(path, 9)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "not the output"),
        ("{}", "no key 'profile'"),
        ('{"profile": {"seconds_by_rows": {}}}', "no run was measured"),
        ('{"profile": {"seconds_by_rows": {"1": -1}}}', "not a time above 0"),
        ('{"profile": {"seconds_by_rows": {"1": NaN}}}', "not a time above 0"),
        ('{"profile": {"seconds_by_rows": {"0": 1}}}', "a size below 1"),
        ('{"profile": {"seconds_by_rows": {"1": 1}, "concurrency": [{}]}}', "no key 'rows'"),
        ("[" * 100_000, "not the output"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """The message names the file, the command that writes it and the problem."""
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(UnreadableProfile, match="cohort profile MODEL --json") as failure:
        read_profile(path)
    assert reason in str(failure.value)


def test_a_language_model_is_measured_instead(tmp_path: Path) -> None:
    """It has no profile; the message names the command that measures it."""
    path = tmp_path / "profile.json"
    path.write_text('{"model": "chat", "version": "1", "language_model": {"chat": true}}')
    status, found = plan(path, 10, "50ms")
    assert status == 2
    assert "describes a language model" in found["error"]
    assert "cohort bench --chat" in found["error"]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The exit code is 2."""
    status, found = plan(tmp_path / "none.json", 10, "50ms")
    assert status == 2
    assert "No such file" in found["error"]


@pytest.mark.parametrize("time", ["50", "ms", "-5ms", "1e3", "5 minutes", "1.2.3ms"])
def test_a_time_needs_its_unit(tmp_path: Path, time: str) -> None:
    """The message shows times that are accepted."""
    status, found = plan(written(tmp_path), 10, time)
    assert status == 2
    assert "50ms" in found["error"]


def test_overhead_counts_for_every_request_of_a_shared_run() -> None:
    """Four requests in a run pay for four, so sharing helps only as far as the run is shared."""
    runs = ReplicaRuns("m", 1, 0.010, {1: 0.010, 4: 0.010})
    alone = plan_replicas(runs, Wanted(1000, 0.5))
    with_overhead = plan_replicas(runs, Wanted(1000, 0.5, overhead=0.010))
    assert (alone.replicas, alone.shared_replicas) == (11, 3)
    assert with_overhead.replicas == 21
    assert with_overhead.shared_replicas is not None
    assert with_overhead.shared_replicas > 12


def test_a_time_that_is_exactly_a_run_needs_few_replicas() -> None:
    """Rounded sums do not make a request late that did not wait."""
    runs = ReplicaRuns("", 1, 0.0123, {1: 0.0123})
    assert plan_replicas(runs, Wanted(777, 0.0123)).replicas == 19


def test_runs_that_are_late_without_a_wait_are_unreachable_in_the_simulation_as_well() -> None:
    """Its slowest runs are a little slower than the formula's; no number of replicas helps."""
    runs = ReplicaRuns("", 1, 0.01, {1: 0.01})
    quickest = Queue(1, 1, 0.01, 1.0).run_time(0.99)
    with pytest.raises(Unreachable, match="More replicas do not help"):
        plan_replicas(runs, Wanted(500, quickest * 1.001, variation=1.0))
    assert plan_replicas(runs, Wanted(500, quickest * 1.05, variation=1.0)).replicas < 20


@pytest.mark.parametrize(
    "profile",
    [
        {"concurrency": [run_of(1, 0.01) | {"at_once": count}]}
        for count in (0, -3, 10**12, float("inf"))
    ]
    + [
        {"seconds_by_rows": {"1": 0.01, "1000000000": 1.0}, "chosen_rows": 10**9},
        {"chosen_rows": float("inf")},
        {"concurrency": 5},
    ],
)
def test_a_profile_with_impossible_numbers_is_refused_at_once(
    tmp_path: Path, profile: dict[str, Any]
) -> None:
    """No number in it decides how much memory or time a plan takes."""
    with pytest.raises(UnreadableProfile, match="is not the output of cohort profile"):
        read_profile(written(tmp_path, profile=profile))


def test_a_profile_of_very_many_sizes_is_planned(tmp_path: Path) -> None:
    """The sizes are read once, not once for each number of requests."""
    sizes = {str(rows): 0.001 + rows * 1e-6 for rows in range(1, 100_000)}
    path = written(tmp_path, profile={"seconds_by_rows": sizes, "chosen_rows": 100_000})
    found = plan_replicas(read_profile(path), Wanted(2000, 0.05))
    assert found.shared_replicas is not None
    assert found.shared_replicas <= found.replicas


@pytest.mark.parametrize("option", ["rate", "cost", "variation"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_an_option_must_be_a_finite_number(option: str, value: str) -> None:
    """The command answers with status 2 before it reads the profile."""
    options = {"rate": "10", "cost": "1", "variation": "0", option: value}
    line = [part for name, text in options.items() for part in (f"--{name}", text)]
    done = CliRunner().invoke(plan_command, [*line, "--p99", "1s", "--profile", "none"])
    assert done.exit_code == 2
    assert f"--{option}" in done.output
