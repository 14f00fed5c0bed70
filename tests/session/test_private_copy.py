"""Private copies of external data: what is open cannot be changed."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from cohort.errors import LoadFailed
from cohort.session import Opener, Provider, Session, model_files
from cohort.session.private_copy import LOCKING_SECONDS, clean
from tests import onnx_models

CHAIN = (Provider("cpu"),)
ROWS = 50_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model whose weights ONNX Runtime maps: 10 times the index."""
    path = tmp_path / "table" / "1" / "model.onnx"
    return onnx_models.save_with_external_data(onnx_models.table(size=ROWS), path)


@pytest.fixture
def weights(path: Path) -> Path:
    return path.with_name("weights.bin")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def secured(path: Path, cache: Path | None) -> Opener:
    opener = Opener(path, chain=CHAIN, cache=cache)
    opener.secure(cache)
    return opener


def kept(cache: Path) -> dict[str, Path]:
    """Return the content that is kept, by its name."""
    return {file.name: file for file in (cache / "weights").glob("[0-9a-f]*")}


def folders(cache: Path) -> list[Path]:
    """Return the open folders."""
    return list((cache / "weights").glob("open-*"))


def last(session: Session) -> float:
    """Return the model's answer from the end of its weights."""
    return float(session.run({"index": np.array([[ROWS - 1]])})[0][0, 0])


def overwrite(weights: Path) -> None:
    """Overwrite a file as `cp` does: truncate it, and write it again."""
    weights.write_bytes(bytes(weights.stat().st_size))


def truncate(weights: Path) -> None:
    os.truncate(weights, 0)


@pytest.mark.parametrize("change", [overwrite, truncate, Path.unlink])
@pytest.mark.parametrize("cached", [True, False])
def test_what_is_open_stays_as_it_is(
    path: Path, weights: Path, cache: Path, change: object, cached: bool
) -> None:
    """Changes of the operator's file affect neither open sessions nor later ones."""
    opener = secured(path, cache if cached else None)
    first = opener.open()
    assert callable(change)
    change(weights)
    assert last(first) == last(opener.open(2)) == 10 * (ROWS - 1)
    opener.close()
    assert last(first) == 10 * (ROWS - 1)
    with pytest.raises(LoadFailed, match="kept no longer"):
        opener.open()


def test_copies_are_named_by_their_content_and_read_only(
    path: Path, weights: Path, cache: Path
) -> None:
    """The opened files have the digests of the operator's files, which are left alone."""
    opener = secured(path, cache)
    assert opener.path != opener.origin == path
    assert opener.file_digests() == Opener(path).file_digests()
    assert set(kept(cache)) == set(opener.file_digests().values())
    for name, file in kept(cache).items():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == name
        assert file.stat().st_mode & 0o222 == 0
    assert {one.name for one in path.parent.iterdir()} == {"model.onnx", "weights.bin"}
    assert weights.stat().st_nlink == 1


def test_content_is_shared(path: Path, cache: Path) -> None:
    """Two versions with the same weights have one file open, and it is made once."""
    other = onnx_models.save_with_external_data(
        onnx_models.table(size=ROWS), path.parents[1] / "2" / "model.onnx"
    )
    first, second = secured(path, cache), secured(other, cache)
    inodes = {one.path.with_name("weights.bin").stat().st_ino for one in (first, second)}
    assert len(inodes) == 1
    assert len(kept(cache)) == 2
    assert len(folders(cache)) == 2


def test_model_without_external_data_is_not_copied(tmp_path: Path, cache: Path) -> None:
    """ONNX Runtime reads all of it."""
    opener = secured(onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx"), cache)
    assert (opener.copy, opener.path) == (None, opener.origin)
    assert not cache.exists()


def test_external_data_in_folders_and_named_twice_is_found(path: Path, cache: Path) -> None:
    """`weights.bin` and `./weights.bin` are one file."""
    model = onnx_models.chain_of_tables("weights.bin", "./weights.bin", "inner/weights.bin")
    path.write_bytes(model.SerializeToString())
    content = np.arange(ROWS, dtype="f4").tobytes()
    path.with_name("weights.bin").write_bytes(content)
    (path.parent / "inner").mkdir()
    (path.parent / "inner" / "weights.bin").write_bytes(content)
    opener = secured(path, cache)
    assert opener.open().run({"index": np.array([[1]])})[0].tolist() == [[3.0]]
    assert len(kept(cache)) == 2
    in_memory = secured(path, None)
    assert in_memory.open().run({"index": np.array([[1]])})[0].tolist() == [[3.0]]


# ---- the cache


def damage(file: Path) -> None:
    file.chmod(0o644)
    with file.open("r+b") as content:
        content.seek(-1, os.SEEK_END)
        content.write(b"?")


@pytest.mark.parametrize("harm", [damage, truncate])
def test_damaged_content_is_replaced(path: Path, cache: Path, harm: object) -> None:
    """Content damaged by a system crash or a failing disk is not used."""
    first = secured(path, cache)
    first.close()
    assert callable(harm)
    for file in kept(cache).values():
        harm(file)
    assert last(secured(path, cache).open()) == 10 * (ROWS - 1)
    assert all(
        hashlib.sha256(file.read_bytes()).hexdigest() == name for name, file in kept(cache).items()
    )


def test_cleaning_leaves_what_is_open(path: Path, cache: Path) -> None:
    """Recently used content stays as well."""
    opener = secured(path, cache)
    make_old(cache)
    clean(cache / "weights", unused_seconds=0)
    assert (len(kept(cache)), len(folders(cache))) == (2, 1)
    opener.close()
    clean(cache / "weights")
    assert (len(kept(cache)), len(folders(cache))) == (2, 0)
    clean(cache / "weights", unused_seconds=0)
    assert not kept(cache)


def make_old(cache: Path) -> None:
    for folder in folders(cache):
        before = folder.stat().st_mtime - 2 * LOCKING_SECONDS
        os.utime(folder, (before, before))


COPY = """
import os, signal, sys
from pathlib import Path
from io import BufferedRandom
from cohort.session import private_copy
from cohort.session.digests import Digests
from cohort.session.private_copy import copy_privately

class Killed(BufferedRandom):
    def write(self, content):
        super().write(content)
        self.flush()
        if self.tell() > 1 << 20:
            os.kill(os.getpid(), signal.SIGKILL)

copy_content = private_copy._copy_content
private_copy._copy_content = lambda source, copy, size: copy_content(
    source, Killed(copy.raw), size
)
private_copy._share_blocks = lambda *_: False
copy_privately(Path(sys.argv[1]), ["weights.bin"], Path(sys.argv[2]), Digests())
"""


def test_what_a_killed_process_leaves_is_cleaned(path: Path, weights: Path, cache: Path) -> None:
    """Half a copy is taken for nothing."""
    content = weights.read_bytes()
    os.truncate(weights, 64 << 20)
    done = subprocess.run([sys.executable, "-c", COPY, path, cache], check=False)
    assert done.returncode == -signal.SIGKILL
    assert any(made.stat().st_size > 1 << 20 for made in cache.rglob("made"))
    assert len(kept(cache)) == 1  # the model, which was whole
    assert len(folders(cache)) == 1
    make_old(cache)
    clean(cache / "weights")
    assert not folders(cache)
    weights.write_bytes(content)
    assert last(secured(path, cache).open()) == 10 * (ROWS - 1)


# ---- without a cache


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file become larger, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_cache_that_cannot_be_used_is_told_and_memory_taken(path: Path, cache: Path) -> None:
    """There is no place for a folder, or for all of a file."""
    cache.write_text("in the way")
    with capture_logs() as logs:
        assert last(secured(path, cache).open()) == 10 * (ROWS - 1)
    cache.unlink()
    with capture_logs() as more, largest_file(100_000):
        assert last(secured(path, cache).open()) == 10 * (ROWS - 1)
    assert [(one["model"], one["version"], one["reason"]) for one in logs + more] == [
        ("table", "1", "Not a directory"),
        ("table", "1", "File too large"),
    ]
    assert not folders(cache)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for two copies of the weights, and no more."""
    folder = tmp_path / "small"
    folder.mkdir()
    size = f"size={5 * ROWS * 4 // 2}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", folder], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)  # sessions have it mapped


def test_room_is_made_of_what_nobody_has_open(path: Path, weights: Path, small_disk: Path) -> None:
    """If all content is open, memory is used."""
    opened = []
    for number in range(3):
        if number == 1:
            secured(path, small_disk).close()
        weights.write_bytes(np.full(ROWS, number, "f4").tobytes())
        opened.append(secured(path, small_disk))
    assert [one.copy is not None for one in opened] == [True, True, False]
    assert [last(one.open()) for one in opened] == [0, 1, 2]
    opened[0].close()
    assert secured(path, small_disk).copy is not None


def test_what_fits_nowhere_is_refused_with_numbers(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits neither into the cache nor into memory."""
    cache.write_text("in the way")
    os.truncate(path.with_name("weights.bin"), 3 << 20)
    monkeypatch.setattr(model_files, "available_memory", lambda: 5 << 20)
    told = r"of 3 MiB cannot .* \(Not a directory\)\. .* 2 times .* 5 MiB"
    with pytest.raises(LoadFailed, match=told) as refused:
        secured(path, cache)
    assert isinstance(refused.value.__cause__, OSError)  # it shows if the fault passes


@pytest.mark.parametrize("cached", [True, False])
def test_files_that_change_while_they_are_copied_fail_the_load(
    path: Path, weights: Path, cache: Path, cached: bool
) -> None:
    """A model of two contents, one read and one copied, is not valid."""
    opener = Opener(path, chain=CHAIN)
    opener.read()
    overwrite(weights)
    with pytest.raises(LoadFailed, match="changed while it was loaded"):
        opener.secure(cache if cached else None)
    assert not folders(cache)


def test_model_that_changes_while_it_is_opened_fails_the_load(path: Path, tmp_path: Path) -> None:
    """Another session is of the same files as the first one, or is not opened."""
    plain = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    opener = secured(plain, None)
    opener.open().close()
    onnx_models.save(onnx_models.mlp(seed=1), plain)
    with pytest.raises(LoadFailed, match="changed while it was loaded"):
        opener.open(2)
