"""Files at S3, Google Cloud Storage or Azure, scored through local copies."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cohort.remote import RemoteFile, RemoteStore
from cohort.scoring.sources import PICTURES, FileUnreadable
from cohort.system.remote_address import check_remote, is_remote


@dataclass(frozen=True, slots=True)
class Local:
    """Where a job works on this machine.

    file: The file or folder to score.
    folder: Keeps the results until all are there.
    out: The file that they become.
    """

    file: Path
    folder: Path
    out: Path


@contextmanager
def at_hand(
    file: str, out: str, cache: Path, fetched: Callable[[int], None] = lambda _: None
) -> Iterator[Local]:
    """Yield local paths for a file and its result; upload the result after the block.

    cache: The folder for copies of remote files. They are kept if the block fails, so that the
        next run need not fetch them.
    fetched: Called with the bytes that were fetched; default: no call.

    Raises FileUnreadable, RemoteFailed or OSError.
    """
    work = cache / "scoring" / hashlib.sha256(f"{file}\n{out}".encode()).hexdigest()[:16]
    local = _fetch(file, work, fetched) if is_remote(file) else Path(file)
    if not local.exists():
        raise FileUnreadable(f"{file} not found")
    if not is_remote(out):
        target = Path(out)
        if target.is_dir():
            raise FileUnreadable(f"--out {out} is a folder")
        if target.exists() and target.samefile(local):
            raise FileUnreadable("--out is the file to score; name another one")
        folder = target.with_name(f"{target.name}.partial")
        yield Local(local.absolute(), folder.absolute(), target.absolute())
    else:
        bucket, name = _split(out)
        made = work / "out" / name
        yield Local(local.absolute(), work / "partial", made)
        RemoteStore(bucket).put(name, made)
    shutil.rmtree(work, ignore_errors=True)


def _split(address: str) -> tuple[str, str]:
    """Return the address of a folder, and the name in it. Raises FileUnreadable."""
    try:
        folder, _, name = check_remote(address).rpartition("/")
        return check_remote(folder), name
    except ValueError:
        raise FileUnreadable(f"{address} must be like s3://bucket/folder/rows.parquet") from None


def _fetch(address: str, work: Path, fetched: Callable[[int], None]) -> Path:
    """Fetch a file, or the pictures of a folder, unless an earlier run did."""
    folder, name = _split(address)
    if Path(name).suffix:
        found = {one.path: one for one in RemoteStore(folder).children()[1]}
        if name not in found:
            raise FileUnreadable(f"{address} not found")
        store, files = RemoteStore(folder), [found[name]]
    else:
        store = RemoteStore(check_remote(address))
        files = [one for one in store.files() if Path(one.path).suffix.lower() in PICTURES]
    for file in files:
        _fetch_one(store, file, work / "in" / file.path, fetched)
    return work / "in" / name if Path(name).suffix else work / "in"


def _fetch_one(
    store: RemoteStore, file: RemoteFile, target: Path, fetched: Callable[[int], None]
) -> None:
    """Fetch a file unless its copy has the same identity."""
    digest = hashlib.sha256(file.identity.encode()).hexdigest()[:16]
    mark = target.with_name(f".{target.name}.{digest}")
    if target.exists() and mark.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.new")
    with part.open("wb") as copy:
        for piece in store.stream(file, 0):
            copy.write(piece)
            fetched(len(piece))
    part.replace(target)
    mark.touch()
