"""The lock files, compared with the requirements."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.e2e.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# The others are frameworks, which people have or uv fetches, in separate environments.
LOCKED = ("gpu", "cuda", "cpu", "openvino", "prepare")


@pytest.mark.parametrize("extra", LOCKED)
def test_each_runtime_locks_all_that_serving_needs(extra: str) -> None:
    """After a dependency is added, `make lock` must be run, with the versions of the tests."""
    locked, tested = pinned(extra), pinned("dev")
    extras = (extra, "bench" if extra == "prepare" else "generative")
    needed = [
        *PROJECT["dependencies"],
        *(one for name in extras for one in PROJECT["optional-dependencies"][name]),
    ]
    for requirement in map(Requirement, needed):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    assert {name: one for name, one in locked.items() if name in tested} == {
        name: tested[name] for name in locked if name in tested
    }


@pytest.mark.parametrize("runtime", ["gpu", "cuda", "cpu", "openvino"])
def test_serving_does_not_install_grpcio(runtime: str) -> None:
    """It is for `cohort bench`, which `make install` brings, and for tests."""
    assert not {name for name in pinned(runtime) if name.startswith("grpcio")}
    assert "grpcio" in pinned("prepare")


def pinned(name: str) -> dict[str, str]:
    """Return the version of each distribution in a lock file; of several, the last."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}
