"""Models folders as git-sync and Kubernetes bring them: links that are swapped, under load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.callers import callers, put
from tests.e2e.processes import Cohort, cohort


def link(at: Path, to: Path) -> None:
    """Point `at` elsewhere, in one step."""
    new = at.with_name(f"{at.name}.new")
    new.symlink_to(to)
    new.rename(at)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`current` is the link that git-sync swaps; `mapped` has a config that is a ConfigMap."""
    root = tmp_path_factory.mktemp("swaps")
    check_out(root, 0)
    for version in (1, 2):
        put(root, "mapped", version)
    write_config(root, 1, version=1)
    (root / "mapped/config.yaml").symlink_to("..data/config.yaml")
    return root


def check_out(root: Path, revision: int, version: int = 1) -> None:
    """Bring a revision as git-sync does: its files in a new folder, then the link."""
    worktree = root / f"worktrees/{revision}"
    put(worktree, "times", version)
    (worktree / "mapped").symlink_to(root / "mapped")
    link(root / "current", worktree)
    if revision:
        shutil.rmtree(root / f"worktrees/{revision - 1}")


def write_config(root: Path, generation: int, *, version: int) -> None:
    """Bring a config as the kubelet does: a new folder, then the link to it."""
    folder = root / f"mapped/..generation-{generation}"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"versions: [{version}]\n")
    link(root / "mapped/..data", Path(folder.name))
    shutil.rmtree(root / f"mapped/..generation-{generation - 1}", ignore_errors=True)


@pytest.fixture(scope="module")
def server(root: Path, cache: Path) -> Iterator[Cohort]:
    with cohort(root / "current", root, cache=cache) as server:
        yield server


def test_a_checkout_that_is_swapped_is_followed_without_a_gap(root: Path, server: Cohort) -> None:
    """The same files may be at another place, then other versions; many swaps may come at once."""
    with callers(server) as heard:
        heard.more()
        check_out(root, 1)
        heard.more(200)
        assert set(heard.versions) == {1}
        for revision in range(2, 10):
            check_out(root, revision, version=2 + revision % 2)
        heard.more(of=3)
        assert not heard.versions[2] or heard.versions[2] < heard.versions[3]
        server.wait_for("/health/ready")
    assert set(heard.statuses) == {"200"}


def test_a_config_map_that_is_swapped_is_followed_without_a_gap(root: Path, server: Cohort) -> None:
    """Its file is a link to a link to a folder that is new each time."""
    with callers(server, "mapped") as heard:
        for generation, version in enumerate((2, 1, 2), 2):
            write_config(root, generation, version=version)
            heard.more(of=version)
    assert set(heard.statuses) == {"200"}
