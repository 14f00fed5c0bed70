"""External data as DVC and Git LFS leave it in a folder; tests/converters does it with the two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cohort.errors import LoadFailed
from cohort.session import Opener, Provider
from tests import onnx_models

ON_CPU = (Provider("cpu"),)

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 268\n"


def link_to(cache: Path, version: Path) -> Path:
    """Return a model whose external data is a link into `cache`, as DVC makes it."""
    model = onnx_models.save_with_external_data(onnx_models.mlp(), version / "model.onnx")
    content = cache / "files/md5/60/eaa630a54d2201d8eaa8c9547be31b"
    content.parent.mkdir(parents=True)
    (version / "weights.bin").rename(content)
    (version / "weights.bin").symlink_to(content)
    return model


@pytest.mark.parametrize("secured", [False, True])
def test_link_into_the_projects_cache_is_followed(tmp_path: Path, secured: bool) -> None:
    """DVC's `cache.type symlink`: a server copies it anyway, a command does for this."""
    expected = onnx_models.save(onnx_models.mlp(), tmp_path / "inline/model.onnx")
    model = link_to(tmp_path / "project/.dvc/cache", tmp_path / "project/models/m/1")
    feeds = {"x": np.ones((2, 4), "f4")}
    answers = []
    for path in (model, expected):
        opener = Opener(path, chain=ON_CPU)
        if secured:
            opener.secure(tmp_path / "cache")
        else:
            opener.resolve_links(tmp_path / "cache")
        answers.append(opener.open().run(feeds)[0].tolist())
        opener.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("cache", ["shared", "elsewhere/.dvc/cache", "project/.dvc"])
def test_link_to_anywhere_else_is_refused(tmp_path: Path, cache: str) -> None:
    """A cache that is not this project's is none; the message has DVC's way out."""
    model = link_to(tmp_path / cache, tmp_path / "project/models/m/1")
    with pytest.raises(LoadFailed, match=r"is a link out of the version's folder; .*relink"):
        Opener(model, chain=ON_CPU).read()


def snapshot(hub: Path, blobs: Path | None = None) -> Path:
    """A version's folder that is a snapshot of Hugging Face's cache, which is links to blobs."""
    made = onnx_models.save_with_external_data(onnx_models.mlp(), hub / "made/model.onnx")
    inside, there = (
        hub / "models--us--mlp/snapshots/5f3a/onnx",
        blobs or hub / "models--us--mlp/blobs",
    )
    inside.mkdir(parents=True)
    there.mkdir(parents=True)
    for number, name in enumerate(("model.onnx", "weights.bin")):
        (made.parent / name).rename(there / f"a{number}")
        to = there / f"a{number}" if blobs else Path(f"../../../blobs/a{number}")
        (inside / name).symlink_to(to)
    version = hub / "models/mlp/1"
    version.parent.mkdir(parents=True)
    version.symlink_to(inside)
    return version / "model.onnx"


def test_a_snapshot_of_hugging_faces_cache_has_its_weights_among_the_blobs(tmp_path: Path) -> None:
    """Only blobs of the same repository are followed."""
    opener = Opener(snapshot(tmp_path / "hub"), chain=ON_CPU)
    opener.resolve_links(tmp_path / "cache")
    assert opener.open().run({"x": np.ones((2, 4), "f4")})[0].shape[0] == 2
    opener.close()


@pytest.mark.parametrize("blobs", ["models--them--mlp/blobs", "models--us--mlp/others", "blobs"])
def test_no_other_blobs_are_followed(tmp_path: Path, blobs: str) -> None:
    """The message has the command that copies a model with its linked files."""
    model = snapshot(tmp_path / "hub", tmp_path / "hub" / blobs)
    with pytest.raises(LoadFailed, match="is a link out of the version's folder; `cohort init"):
        Opener(model, chain=ON_CPU).read()


def test_blobs_that_are_a_link_are_refused(tmp_path: Path) -> None:
    """A linked DVC cache is also refused."""
    outside = tmp_path / "outside"
    model = snapshot(tmp_path / "hub", outside)
    (tmp_path / "hub/models--us--mlp/blobs").symlink_to(outside)
    with pytest.raises(LoadFailed, match="is a link out of the version's folder"):
        Opener(model, chain=ON_CPU).read()


def test_cache_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Otherwise a writer to the repository could name any file of the machine."""
    outside = tmp_path / "outside"
    model = link_to(outside, tmp_path / "project/models/m/1")
    (tmp_path / "project/.dvc").mkdir()
    (tmp_path / "project/.dvc/cache").symlink_to(outside)
    with pytest.raises(LoadFailed, match="is a link out of the version's folder"):
        Opener(model, chain=ON_CPU).read()


def test_pointer_in_place_of_weights_is_told(tmp_path: Path) -> None:
    """The error has the command that fetches them."""
    model = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "1/model.onnx")
    (tmp_path / "1/weights.bin").write_bytes(POINTER)
    with pytest.raises(LoadFailed, match=r"'weights.bin' is a Git LFS pointer: `git lfs pull`"):
        Opener(model, chain=ON_CPU).read()


def test_weights_that_were_not_pulled_are_told(tmp_path: Path) -> None:
    """DVC leaves a file next to the place of the missing one."""
    model = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "1/model.onnx")
    (tmp_path / "1/weights.bin").rename(tmp_path / "1/weights.bin.dvc")
    with pytest.raises(LoadFailed, match=r"'weights.bin' is missing: `dvc pull` fetches it"):
        Opener(model, chain=ON_CPU).read()
