"""Digests, for as long as a model loads."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from cohort.errors import LoadFailed
from cohort.session import Digests, ModelRules, Opener, SessionOptions, digests
from cohort.session.digests import hash_file
from tests import onnx_models


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read for their digests, in order."""
    names: list[str] = []

    def counted(path: Path) -> str:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(digests, "hash_file", counted)
    return names


def test_file_is_read_once(tmp_path: Path, hashed: list[str]) -> None:
    """A file is read once to compute its SHA-256 digest."""
    (tmp_path / "a").write_bytes(b"1234")
    known = Digests()
    assert {known.of(tmp_path / "a") for _ in range(3)} == {hashlib.sha256(b"1234").hexdigest()}
    assert hashed == ["a"]


def test_changed_or_replaced_file_is_read_again(tmp_path: Path) -> None:
    """A file with its old time, or moved to another's place, is also read again."""
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"1234")
    known = Digests()
    first, times = known.of(path), path.stat()
    path.write_bytes(b"12345")
    assert known.of(path) == hash_file(path) != first
    other.write_bytes(b"4321")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)
    assert known.of(path) == hash_file(path) != first


def test_change_while_a_file_is_read_is_seen_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest that was true when it was asked for is not kept."""
    path, known = tmp_path / "a", Digests()
    path.write_bytes(b"old")

    def hash_and_change(file: Path) -> str:
        found = hash_file(file)
        file.write_bytes(b"newer")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(digests, "hash_file", hash_and_change)
        assert known.of(path) == hashlib.sha256(b"old").hexdigest()
    assert known.of(path) == hashlib.sha256(b"newer").hexdigest()


def test_missing_file_has_no_digest(tmp_path: Path) -> None:
    """A file that was deleted has no digest either."""
    known = Digests()
    (tmp_path / "a").touch()
    known.of(tmp_path / "a")
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        known.of(tmp_path / "a")


def test_pipe_has_no_digest(tmp_path: Path) -> None:
    """Reading it would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a file"):
        Digests().of(tmp_path / "pipe")


def test_opener_knows_when_files_change_after_it_looked(tmp_path: Path) -> None:
    """The model's own, its external data and its custom operators all count."""
    path = onnx_models.save_with_external_data(
        onnx_models.mlp(), tmp_path / "mlp" / "1" / "model.onnx"
    )
    library = tmp_path / "mlp" / "ops.so"
    library.write_bytes(Path(sys.executable).read_bytes()[:64])  # a file for this machine
    data = next(file for file in path.parent.iterdir() if file != path)
    seen = set()
    for changed in (path, data, library):
        opener = Opener(
            path,
            options=SessionOptions(custom_op_libraries=("ops.so",)),
            rules=ModelRules(custom_ops=(library.parent,)),
        )
        seen.add(opener.digest())
        assert opener.unchanged()
        changed.write_bytes(changed.read_bytes())
        assert not opener.unchanged()
        changed.write_bytes(changed.read_bytes() + b"\0" * (changed != path))
    assert len(seen) == 2  # `path` kept its content


def test_digest_of_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    """Opening it is refused as well."""
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(LoadFailed):
        Opener(tmp_path / "model.onnx").digest()


def test_digests_of_a_models_files_have_their_names(tmp_path: Path) -> None:
    """They equal sha256sum's in the version's folder."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "model.onnx")
    assert Opener(path).file_digests() == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("model.onnx", "weights.bin")
    }
