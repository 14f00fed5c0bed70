"""Sources of packages for the environment that uv makes for a framework."""

from __future__ import annotations

import pytest

from cohort_prepare.environments import find_environment
from cohort_prepare.frameworks import FRAMEWORKS


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of uv's or pip's."""
    for name in ("TORCH_BACKEND", "INDEX", "DEFAULT_INDEX", "INDEX_URL", "EXTRA_INDEX_URL"):
        monkeypatch.delenv(f"UV_{name}", raising=False)
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def command() -> str:
    """Return the command of PyTorch's environment; a missing package rules out the current one."""
    return " ".join(find_environment(FRAMEWORKS["pytorch"], packages=["torchvision"]).command)


def test_torch_is_the_one_for_the_cpu() -> None:
    """It is the default, since the one for CUDA takes gigabytes."""
    assert "--torch-backend cpu" in command()


def test_wheels_that_pip_has_are_uv_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """uv finds them as `make install` does; torch is then from there or from PyPI."""
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels https://wheels.example")
    assert "--find-links /wheels --find-links https://wheels.example" in command()
    assert "--torch-backend" not in command()


def test_uv_s_own_variables_go_before_pip_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """uv reads them itself."""
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("UV_FIND_LINKS", "/others")
    assert "--find-links" not in command()
    assert "--torch-backend" not in command()
