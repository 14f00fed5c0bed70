"""The extras that messages name, and `make install EXTRAS=…`."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from cohort.extras import how_to_install
from tests.e2e.processes import ROOT


class Checkout:
    """An environment for `make install`, whose uv records its calls."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.uv, self.calls = folder / "venv", folder / "uv", folder / "calls"
        self.bin = folder / "bin"
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").touch()
        self.uv.write_text(
            f'#!/bin/sh\n[ ! -e {folder}/broken ] || exit 1\necho "$@" >>{self.calls}\n'
        )
        self.uv.chmod(0o755)
        self.stamp = self.venv / "prepare.stamp"
        self.stamp.touch()

    def install(self, extras: str = "") -> subprocess.CompletedProcess[str]:
        """Run `make install`."""
        given = {"VENV": self.venv, "UV": self.uv, "BIN": self.bin, "EXTRAS": extras}
        return subprocess.run(
            ["make", "install", *(f"{name}={value}" for name, value in given.items())],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def last_call(self) -> str:
        """Return the arguments of the last call of uv, and forget all."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else [""]
        self.calls.unlink(missing_ok=True)
        return calls[-1]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Make an environment that is installed."""
    return Checkout(tmp_path)


@pytest.mark.parametrize("given", ["score,ray", "score ray", "ray, score,"])
def test_extras_are_installed_with_locked_versions(checkout: Checkout, given: str) -> None:
    """`EXTRAS` adds the packages of these extras, constrained by the lock files."""
    done = checkout.install(given)
    assert done.returncode == 0, done.stderr
    call = checkout.last_call()
    assert "-r pyproject.toml --extra ray --extra score -c requirements/dev.txt" in call


def test_extras_stay_when_the_environment_is_synchronized(checkout: Checkout) -> None:
    """A later install removes packages that are not locked, then installs the extras again."""
    checkout.install("score")
    checkout.install("tracing")
    assert "--extra score --extra tracing" in checkout.last_call()
    os.utime(checkout.stamp, (0, 0))
    checkout.install()
    assert "--extra score --extra tracing" in checkout.last_call()


def test_an_environment_without_extras_gets_none(checkout: Checkout) -> None:
    """Nothing is installed for extras that were never requested."""
    os.utime(checkout.stamp, (0, 0))
    checkout.install()
    assert "--extra" not in checkout.last_call()


def test_extras_that_failed_are_not_kept(checkout: Checkout, tmp_path: Path) -> None:
    """The install fails, and later ones do not try these extras again."""
    (tmp_path / "broken").touch()
    assert checkout.install("ray").returncode != 0
    (tmp_path / "broken").unlink()
    os.utime(checkout.stamp, (0, 0))
    checkout.install()
    assert "--extra" not in checkout.last_call()


def test_unknown_extras_are_refused(checkout: Checkout) -> None:
    """Runtimes are not extras of an environment: two of them in one break each other."""
    done = checkout.install("score,cpu")
    assert done.returncode != 0
    assert 'not "cpu"' in done.stderr
    assert checkout.last_call() == ""


def test_messages_name_extras_that_exist() -> None:
    """Each extra in a message is one of the package, and one that `make install` takes."""
    sources = "".join(one.read_text() for one in (ROOT / "app").rglob("*.py"))
    named = set(re.findall(r"how_to_install\(['\"](\w+)['\"]\)", sources)) | {"prepare"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = re.search(r"^KNOWN_EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert known is not None
    assert named <= set(known[1].split()) <= {*project["optional-dependencies"]}


def test_a_message_never_installs_another_project() -> None:
    """No message and no page has a pip command for `cohort`, which pypi.org has from others."""
    assert "cohort[generative]" in how_to_install("generative")
    texts = [*(ROOT / "app").rglob("*.py"), *(ROOT / "docs" / "guide").glob("*.md")]
    found = re.compile(r"pip install ['\"]?cohort\[[^]]*\]['\"]")
    assert [str(one) for one in texts if found.search(one.read_text())] == []
