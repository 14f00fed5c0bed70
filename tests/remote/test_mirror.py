"""A mirror of a repository at a real S3-compatible server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cohort.remote import Mirror, ModelUse, store
from cohort.repository import scan
from tests import onnx_models
from tests.remote.servers import Bucket, network
from tests.waiting import PATIENCE

MakeMirror = Callable[..., Mirror]

LARGE = np.random.default_rng(7).bytes(6 << 20)


@pytest.fixture
def mirror(bucket: Bucket, tmp_path: Path) -> Iterator[MakeMirror]:
    """Makes mirrors of the bucket in one folder."""
    made: list[Mirror] = []

    def make(folder: str = "mirror", **options: object) -> Mirror:
        made.append(Mirror(bucket.url, tmp_path / folder, **{"quiet": 0, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def look(mirror: Mirror, uses: dict[str, ModelUse] | None = None) -> None:
    """Look, and wait until what is wanted has come."""
    mirror.sync(uses)
    assert mirror.wait(PATIENCE)


def files(mirror: Mirror) -> dict[str, bytes]:
    """Return the contents of a mirror's models folder, by path."""
    folder = mirror.models
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def manifest(**contents: bytes) -> bytes:
    """Return a manifest with the digests of `model` (model.onnx) and what else is named."""
    digests = {
        "model.onnx" if name == "model" else name: hashlib.sha256(content).hexdigest()
        for name, content in contents.items()
    }
    return json.dumps({"format": 1, "files": digests}).encode()


def test_version_is_served_from_the_mirror(bucket: Bucket, mirror: MakeMirror) -> None:
    """A version with external data in a bucket is a version on disk, as any other."""
    local = mirror()
    source = local.models.parent.parent / "source"
    onnx_models.save_with_external_data(onnx_models.mlp(), source / "model.onnx")
    bucket.put_folder(source, "mlp/1")
    bucket.put("mlp/config.yaml", b"batching: {max_batch_size: 4}\n")
    look(local)
    found = scan(local.models, quiet=0)
    assert not found.problems
    config = found.models["mlp"].config
    assert config is not None
    assert config.batching.max_batch_size == 4
    assert {path.name for path in (local.models / "mlp/1").iterdir()} == {
        "model.onnx",
        "weights.bin",
    }


def test_only_what_the_policy_wants_is_fetched(bucket: Bucket, mirror: MakeMirror) -> None:
    """The latest version by default, those of the config, and those that a rollout names."""
    for number in (1, 2, 3, 10):
        bucket.put(f"m/{number}/model.onnx", b"%d" % number)
    local = mirror()
    look(local)
    assert files(local) == {"m/10/model.onnx": b"10"}
    look(local, {"m": ModelUse(pinned={1})})
    assert set(files(local)) == {"m/1/model.onnx", "m/10/model.onnx"}
    bucket.put("m/config.yaml", b"versions: {latest: 2}\n")
    look(local, {"m": ModelUse()})
    assert {"m/3/model.onnx", "m/10/model.onnx"} <= set(files(local))


def test_older_version_comes_where_the_latest_cannot_serve(
    bucket: Bucket, mirror: MakeMirror
) -> None:
    """What failed to load, or is not what was published, lets the next older one be fetched."""
    bucket.put("m/1/model.onnx", b"one")
    bucket.put("m/2/model.onnx", b"two")
    local = mirror()
    look(local, {"m": ModelUse(passed_over={2})})
    assert set(files(local)) == {"m/1/model.onnx", "m/2/model.onnx"}

    bucket.put("k/1/model.onnx", b"one")
    bucket.put("k/2/manifest.json", manifest(model=b"published"))
    bucket.put("k/2/model.onnx", b"something else")
    look(local)
    (problem,) = local.status.problems
    assert "k/2/model.onnx is not the file that was published" in str(problem)
    look(local)
    assert files(local)["k/1/model.onnx"] == b"one"
    assert "k/2/model.onnx" not in files(local)


def test_same_content_is_fetched_once(bucket: Bucket, mirror: MakeMirror) -> None:
    """A version whose manifest names a file that is here takes it from here."""
    for number in (1, 2):
        bucket.put(f"m/{number}/manifest.json", manifest(model=LARGE))
        bucket.put(f"m/{number}/model.onnx", LARGE)
    bucket.put("m/config.yaml", b"versions: [1]\n")
    local = mirror()
    look(local)
    once = local.status.fetched_bytes
    assert once >= len(LARGE)
    bucket.put("m/config.yaml", b"versions: all\n")
    look(local)
    assert files(local)["m/2/model.onnx"] == LARGE
    assert local.status.fetched_bytes - once < 10_000


def test_broken_download_is_continued(bucket: Bucket, mirror: MakeMirror) -> None:
    """The received part of a file is kept, also for another process, and the rest is requested."""
    bucket.put("m/1/model.onnx", LARGE)
    with network(int(bucket.endpoint.rpartition(":")[2])) as between:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{between.port}"
        between.cut = 3 << 20
        first = mirror()
        look(first)
        assert not files(first)
        assert first.status.problems
        first.close()
        came = sum(part.stat().st_size for part in (first.models.parent / "parts").iterdir())
        assert 0 < came < len(LARGE)

        between.cut = None
        between.requests.clear()
        second = mirror()
        look(second)
    assert files(second) == {"m/1/model.onnx": LARGE}
    assert f"range: bytes={came}-".encode() in b"".join(between.requests).lower()
    assert second.status.fetched_bytes == len(LARGE) - came
    assert not list((second.models.parent / "parts").iterdir())


def test_file_that_changed_is_not_continued(bucket: Bucket, mirror: MakeMirror) -> None:
    """The rest of another file is not appended to the received part of the first."""
    bucket.put("m/1/model.onnx", LARGE)
    with network(int(bucket.endpoint.rpartition(":")[2])) as between:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{between.port}"
        between.cut = 3 << 20
        local = mirror()
        look(local)
        between.cut = None
        other = LARGE[::-1]
        bucket.put("m/1/model.onnx", other)
        look(local)
    assert files(local) == {"m/1/model.onnx": other}


def test_what_is_gone_goes_once_it_is_known(bucket: Bucket, mirror: MakeMirror) -> None:
    """A version, and a model, that are gone from the bucket go here, the newer one first here."""
    for number in (1, 2):
        bucket.put(f"m/{number}/model.onnx", b"%d" % number)
    bucket.put("k/1/model.onnx", b"k")
    local = mirror()
    look(local)
    bucket.delete("m/2/model.onnx")
    bucket.delete("k/1/model.onnx")
    look(local)
    assert files(local)["m/1/model.onnx"] == b"1"
    look(local)
    assert files(local) == {"m/1/model.onnx": b"1"}


def test_replaced_version_is_fetched_anew(bucket: Bucket, mirror: MakeMirror) -> None:
    """Other content under the same path takes the place of the former; the rest is not fetched."""
    bucket.put("m/1/model.onnx", b"former")
    bucket.put("m/1/weights.bin", LARGE)
    local = mirror()
    look(local)
    before = local.status.fetched_bytes
    bucket.put("m/1/model.onnx", b"newer")
    look(local)
    assert files(local) == {"m/1/model.onnx": b"newer", "m/1/weights.bin": LARGE}
    assert local.status.fetched_bytes - before == len(b"newer")


def test_unreachable_repository_takes_nothing_away(
    bucket: Bucket, mirror: MakeMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local files stay, the status has the reason, and a new process starts with them."""
    bucket.put("m/1/model.onnx", b"1")
    local = mirror()
    look(local)
    local.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    later = mirror()
    look(later)
    assert files(later) == {"m/1/model.onnx": b"1"}
    assert later.status.failure == f"{bucket.url} cannot be reached, or does not answer in time"
    assert later.status.settled
    empty = mirror("other")
    look(empty)
    assert not empty.status.settled


def test_empty_repository_is_not_believed_at_once(bucket: Bucket, mirror: MakeMirror) -> None:
    """If the last model is gone, the local files stay for a while: it may be a mistake."""
    bucket.put("m/1/model.onnx", b"1")
    local = mirror()
    look(local)
    bucket.delete("m/1/model.onnx")
    look(local)
    assert files(local) == {"m/1/model.onnx": b"1"}
    assert "no longer has a model" in local.status.failure


def test_half_published_version_waits(bucket: Bucket, mirror: MakeMirror) -> None:
    """A version counts once all that its manifest names is there; until then the former serves."""
    bucket.put("m/1/model.onnx", b"1")
    bucket.put("m/2/manifest.json", manifest(model=b"2", weights=b"w"))
    local = mirror()
    look(local)
    assert set(files(local)) == {"m/1/model.onnx"}
    bucket.put("m/2/model.onnx", b"2")
    look(local)
    assert set(files(local)) == {"m/1/model.onnx"}
    assert any("is not complete" in str(problem) for problem in local.status.problems)
    bucket.put("m/2/weights", b"w")
    look(local)
    assert "m/2/model.onnx" in files(local)
    assert not local.status.problems


HOSTILE = {
    "m/1/../../../evil": "m/1",
    "m/1//evil": "m/1",
    "m/1/\x01": "m/1",
    "m/../../evil": "m",
    "m//evil": "m",
    "m/./1/model.onnx": "m",
    "../evil": "",
    "/evil": "",
    "\x01/1/model.onnx": "",
}
"""Keys that cannot be paths, and the folder under which they are reported."""


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_key_holds_up_only_its_own(bucket: Bucket, mirror: MakeMirror, key: str) -> None:
    """It is reported by name; the files of its version stay, and the rest is followed."""
    bucket.put("m/1/model.onnx", b"1")
    bucket.put("k/1/model.onnx", b"1")
    local = mirror()
    look(local)
    bucket.put(key, b"evil")
    bucket.put("m/2/model.onnx", b"2")
    bucket.put("k/2/model.onnx", b"2")
    bucket.put("new/1/model.onnx", b"1")
    look(local)
    assert not local.status.failure
    (problem,) = local.status.problems
    assert problem.file == HOSTILE[key]
    assert repr(f"models/{key}")[1:-1] in str(problem)
    here = files(local)
    assert here["m/1/model.onnx"] == here["k/1/model.onnx"] == here["new/1/model.onnx"] == b"1"
    assert here["m/2/model.onnx"] == here["k/2/model.onnx"] == b"2"
    assert len(here) == 5
    root = local.models.parent.parent
    assert not [path for path in root.rglob("*") if "evil" in path.name]
    bucket.delete(key)
    look(local)
    assert not local.status.problems


def test_hostile_keys_on_every_level_leave_what_is_here(bucket: Bucket, mirror: MakeMirror) -> None:
    """Models that are here are followed by name; those that cannot be listed stay as they are."""
    for name in ("m", "k", "gone"):
        bucket.put(f"{name}/1/model.onnx", b"1")
    local = mirror()
    look(local)
    for key in ("../evil", "m/../evil", "m/1/../evil", "k/1/../evil"):
        bucket.put(key, b"evil")
    for name in ("m", "k"):
        bucket.put(f"{name}/2/model.onnx", b"2")
    bucket.delete("gone/1/model.onnx")
    for _ in range(3):
        look(local, {name: ModelUse() for name in ("m", "k")})
    assert set(files(local)) == {"m/1/model.onnx", "k/1/model.onnx", "k/2/model.onnx"}
    assert not local.status.failure
    assert {problem.file for problem in local.status.problems} == {"", "m", "k/1"}


def test_version_that_became_hostile_is_not_taken_away(bucket: Bucket, mirror: MakeMirror) -> None:
    """Its only version stays here, also when its new content has names that no disk takes."""
    for name in ("m", "k"):
        bucket.put(f"{name}/1/model.onnx", b"1")
    local = mirror()
    look(local)
    bucket.put("m/1/../x", b"evil")
    bucket.put("k/1/a:b", b"evil")
    for _ in range(3):
        look(local, {name: ModelUse() for name in ("m", "k")})
    assert files(local) == {"m/1/model.onnx": b"1", "k/1/model.onnx": b"1"}
    assert {problem.file for problem in local.status.problems} == {"m/1", "k/1"}


def test_file_that_is_a_folder_as_well_is_told(bucket: Bucket, mirror: MakeMirror) -> None:
    """A bucket may have both, and a disk cannot; the former version stays."""
    bucket.put("m/1/model.onnx", b"1")
    local = mirror()
    look(local)
    bucket.put("m/2/model.onnx", b"2")
    bucket.put("m/2/model.onnx/x", b"3")
    look(local)
    assert files(local) == {"m/1/model.onnx": b"1"}
    (problem,) = local.status.problems
    assert "model.onnx/x: its folder is also the name of a file" in str(problem)


def test_listing_without_end_is_given_up(
    bucket: Bucket, mirror: MakeMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is here stays."""
    bucket.put("m/1/model.onnx", b"1")
    local = mirror()
    look(local)
    monkeypatch.setattr(store, "LISTING_SECONDS", -1.0)
    look(local)
    assert files(local) == {"m/1/model.onnx": b"1"}
    assert "was not listed within" in local.status.failure


@pytest.mark.parametrize("key", ["m/one/model.onnx", ".m/1/model.onnx", "a b/1/model.onnx"])
def test_what_is_no_model_is_left_out(bucket: Bucket, mirror: MakeMirror, key: str) -> None:
    """Names that do not belong to a model or version are not fetched, and the rest is."""
    bucket.put("m/1/model.onnx", b"1")
    bucket.put(key, b"2")
    bucket.client.put_object(Bucket=bucket.name, Key="models/m/1/", Body=b"")  # as consoles make
    local = mirror()
    look(local)
    assert files(local) == {"m/1/model.onnx": b"1"}
    assert len(local.status.problems) == (not key.startswith("."))


def test_version_that_is_too_large_is_not_fetched(bucket: Bucket, mirror: MakeMirror) -> None:
    """COHORT_MAX_MODEL_MB holds before the first byte."""
    bucket.put("m/1/model.onnx", LARGE)
    local = mirror(max_bytes=2 << 20)
    look(local)
    assert str(local.status.problems[0]) == (
        "m/1 has 6 MiB; at most 2 are allowed (COHORT_MAX_MODEL_MB)"
    )
    assert not local.status.fetched_bytes


def test_second_process_leaves_the_folder_to_the_first(bucket: Bucket, mirror: MakeMirror) -> None:
    """One process changes a mirror; when it ends, the next one does."""
    bucket.put("m/1/model.onnx", b"1")
    first, second = mirror(), mirror()
    look(first)
    look(second)
    assert second.status.follows
    assert second.status.settled
    first.close()
    look(second)
    assert not second.status.follows


def test_old_versions_go_but_for_one_to_step_back_to(bucket: Bucket, mirror: MakeMirror) -> None:
    """Of the versions neither wanted nor loaded, the newest stays."""
    local = mirror()
    for number in (1, 2, 3, 4):
        bucket.put(f"m/{number}/model.onnx", b"%d" % number)
        look(local, {"m": ModelUse(loaded={1})})
    look(local, {"m": ModelUse(loaded={1})})
    assert set(files(local)) == {"m/1/model.onnx", "m/3/model.onnx", "m/4/model.onnx"}


def test_version_that_still_changes_waits(bucket: Bucket, mirror: MakeMirror) -> None:
    """A copy into the bucket, file by file, is not taken up in the middle."""
    bucket.put("m/1/model.onnx", b"1")
    local = mirror(quiet=3600)
    look(local)
    assert not files(local)
    assert not local.status.settled
