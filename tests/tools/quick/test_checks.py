"""`make quick` checks each changed file as CI does, and names files that it does not check."""

from __future__ import annotations

import pytest

from tools.quick.checks import FEW, find_checks, find_unchecked, pytest_command


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("app/cohort/errors.py", ["ruff check", "ruff format", "mypy", "prose"]),
        ("app/cohort/rpc/inference_pb2.py", ["ruff check", "ruff format"]),
        ("docs/conf.py", ["ruff check", "ruff format", "prose"]),
        ("pyproject.toml", ["ruff check"]),
        ("deploy/prometheus/prometheus.yml", ["yamllint"]),
        ("deploy/command.sh", ["shellcheck", "prose"]),
        (".ci/run", ["shellcheck", "prose"]),
        ("Dockerfile", ["hadolint"]),
        ("README.md", ["prose"]),
    ],
)
def test_each_kind_of_file_has_its_checks(path: str, checks: list[str]) -> None:
    """Those of `make lint` and `make types`, for these files alone; none is left unmentioned."""
    assert [one.name for one in find_checks([path])] == checks
    assert all(path in one.command for one in find_checks([path]) if path != "pyproject.toml")
    assert find_unchecked([path]) == []


def test_what_nothing_looks_at_is_named() -> None:
    """Otherwise silence could be mistaken for a check."""
    assert find_unchecked(["deploy/nginx/nginx.conf", "app/cohort/errors.py"]) == [
        "deploy/nginx/nginx.conf"
    ]


def test_a_few_modules_run_in_one_process() -> None:
    """Further processes pay only for many modules."""
    assert "-n" not in pytest_command(["tests/test_errors.py"] * FEW).command
    command = pytest_command(["tests/test_errors.py"] * (FEW + 1)).command
    assert command[command.index("-n") + 1] == "2"
