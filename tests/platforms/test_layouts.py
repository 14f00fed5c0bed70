"""The layouts of a folder that is one model, on disk and in a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cohort.remote.listing import arrange
from cohort.remote.raw_listing import RawListing
from cohort.remote.store import RemoteFile
from cohort.repository import Layout, Snapshot, scan

CASES = [
    (["flowers.onnx"], "named", {"named/1": "flowers.onnx"}),
    (["flowers.onnx"], "", {"model/1": "flowers.onnx"}),
    (["model.onnx", "other.onnx"], "named", {"named/1": "model.onnx"}),
    (["model.onnx", "weights/data.bin"], "named", {"named/1": "model.onnx"}),
    (["model/model.onnx"], "named", {"named/1": "model.onnx"}),
    (["model/model.onnx"], "", {"model/1": "model.onnx"}),
    (["1/model.onnx", "3/flowers.onnx"], "named", {"named/3": "flowers.onnx"}),
    (["iris/1/model.onnx"], "named", {"named/1": "model.onnx"}),
    (["iris/1/model.onnx"], "", {"iris/1": "model.onnx"}),
    (["a/b/iris/1/model.onnx"], "", {"iris/1": "model.onnx"}),
    (
        ["iris/1/model.onnx", "digits/1/model.onnx"],
        "iris",
        {"iris/1": "model.onnx", "digits/1": "model.onnx"},
    ),
]


def write(folder: Path, files: Sequence[str]) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"onnx")


def newest(snapshot: Snapshot) -> dict[str, str]:
    """The newest version of each model, and the name of its file."""
    return {
        f"{name}/{max(model.versions)}": model.versions[max(model.versions)].path.name
        for name, model in snapshot.models.items()
    }


@pytest.mark.parametrize(("files", "name", "served"), CASES)
def test_a_folder_in_any_layout_is_found(
    tmp_path: Path, files: list[str], name: str, served: dict[str, str]
) -> None:
    """One model gets the name that was given, or that of its folder."""
    write(tmp_path, files)
    found = scan(tmp_path, quiet=0, layout=Layout(name, loose=True))
    assert newest(found) == served
    assert not found.problems


@pytest.mark.parametrize(("files", "name", "served"), CASES[:6] + CASES[7:])
def test_a_bucket_in_any_layout_is_found(
    files: list[str], name: str, served: dict[str, str]
) -> None:
    """It is mirrored as a repository, in which the model's file is model.onnx."""
    listing = arrange(RawListing([RemoteFile(file, "1", 4) for file in files]), name)
    places = {
        f"{model}/{number}": version.files["model.onnx"].path
        for model, one in listing.models.items()
        for number, version in one.versions.items()
    }
    assert {place: path.rpartition("/")[2] for place, path in places.items()} == served


def test_a_config_next_to_a_loose_model_is_its_config(tmp_path: Path) -> None:
    """On disk and in a bucket."""
    write(tmp_path, ["flowers.onnx"])
    (tmp_path / "config.yaml").write_text("timeout_ms: 7\n")
    found = scan(tmp_path, quiet=0, layout=Layout("named", loose=True)).models["named"]
    assert found.config is not None
    assert found.config.timeout_ms == 7
    files = [RemoteFile(file, "1", 4) for file in ("flowers.onnx", "config.yaml")]
    assert arrange(RawListing(files), "named").models["named"].config == files[1]


def test_several_models_without_a_main_one_are_refused(tmp_path: Path) -> None:
    """The message contains the name to use."""
    write(tmp_path, ["a.onnx", "b.onnx"])
    found = scan(tmp_path, quiet=0, layout=Layout("named", loose=True))
    assert not found.models
    assert "several .onnx files; rename one to model.onnx" in str(found.problems[0])


def test_a_name_that_a_repository_of_several_models_lacks_is_a_problem(tmp_path: Path) -> None:
    """They are served under their own names."""
    write(tmp_path, ["iris/1/model.onnx", "digits/1/model.onnx"])
    found = scan(tmp_path, quiet=0, layout=Layout("named", loose=True))
    assert sorted(found.models) == ["digits", "iris"]
    assert "no model is named 'named' (COHORT_MODEL_NAME)" in str(found.problems[0])


def test_without_a_name_a_folder_is_a_repository(tmp_path: Path) -> None:
    """As before; the problem names the right place."""
    write(tmp_path, ["flowers.onnx"])
    found = scan(tmp_path, quiet=0)
    assert not found.models
    assert "move it to flowers/1/model.onnx" in str(found.problems[0])


def test_a_removed_link_is_gone_at_once(tmp_path: Path) -> None:
    """Other folders keep a model for a while, as a volume may have been unmounted."""
    write(tmp_path, ["real/flowers.onnx"])
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "named").symlink_to(tmp_path / "real")
    for layout, left in ((Layout(loose=True), []), (Layout("", loose=True), ["named"])):
        found = scan(folder, layout=layout)
        assert list(found.models) == ["named"]
        (folder / "named").unlink()
        assert list(scan(folder, found, layout=layout).models) == left
        (folder / "named").symlink_to(tmp_path / "real")


def test_weights_are_those_next_to_the_real_file_of_a_link(tmp_path: Path) -> None:
    """KServe makes a link for each file, which would lead out of the model's folder."""
    write(tmp_path, ["real/flowers.onnx", "real/flowers.onnx.data"])
    (tmp_path / "mnt").mkdir()
    for file in ("flowers.onnx", "flowers.onnx.data"):
        (tmp_path / "mnt" / file).symlink_to(tmp_path / "real" / file)
    found = scan(tmp_path / "mnt", quiet=0, layout=Layout("named", loose=True))
    assert found.models["named"].versions[1].folder == tmp_path / "real"
