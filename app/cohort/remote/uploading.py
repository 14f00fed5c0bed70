"""Putting a version into a remote repository, so that it counts only when it is whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cohort.errors import RemoteFailed, check_model_name
from cohort.remote.looking import look
from cohort.remote.store import RemoteFile, RemoteStore
from cohort.repository import (
    MANIFEST_FILE,
    MODEL_FILE,
    SIGNATURE_FILE,
    VERSION_FILES,
    VERSION_NUMBER,
)
from cohort.repository.manifest import MAX_MANIFEST_BYTES
from cohort.system.remote_address import check_remote

MOST_TRIES = 100
"""To find a number that nobody else takes at the same moment."""


def upload_version(
    address: str,
    model: str,
    files: Mapping[str, Path],
    *,
    sent: Callable[[int], None] = lambda _: None,
) -> int:
    """Upload the files of a version under the next number of its model, and give that number.

    address: Of the repository, such as s3://bucket/models.
    model: The model's name.
    files: Local files by their paths in the version's folder, manifest.json and model.onnx or
        pipeline.yaml among them.
    sent: Is told how many bytes each file had that is there.

    The number is claimed by making manifest.json, which succeeds for one of those who try it at the
    same time. model.onnx, or pipeline.yaml, comes last: without it a version does not count.

    Raises RemoteFailed, or what ends the process, with what was uploaded deleted as far as that is
    possible; ValueError where the address or the files are not usable.
    """
    last = next((one for one in VERSION_FILES if one in files), MODEL_FILE)
    if missing := {MANIFEST_FILE, last} - files.keys():
        raise ValueError(f"{min(missing)} is not among the files")
    check_model_name(model)
    if check_remote(address).startswith("http"):
        raise RemoteFailed(
            f"{address} cannot be written to: publish to a folder, or to s3://, gs:// or az://"
        )
    store = RemoteStore(check_remote(address))
    manifest = files[MANIFEST_FILE].read_bytes()
    number = _claim(store, model, manifest)
    sent(len(manifest))
    folder = f"{model}/{number}"
    uploaded = [f"{folder}/{MANIFEST_FILE}"]
    rest = sorted(files.keys() - {MANIFEST_FILE}, key=lambda path: (path == last, path))
    with _deleted_on_failure(store, uploaded):
        for path in rest:
            uploaded.append(f"{folder}/{path}")
            store.put(f"{folder}/{path}", files[path])
            sent(files[path].stat().st_size)
    return number


MOST_MANIFESTS = 10
"""Versions whose manifests are fetched, to find out whether one is published already."""


def fetch_manifests(address: str, model: str, folder: Path) -> Iterator[tuple[int, Path]]:
    """Fetch manifest and signature of a model's newest versions, the newest first.

    Each comes into a folder of its own in `folder`, as `<model>/<version>`; at most MOST_MANIFESTS.

    Raises RemoteFailed, and ValueError where the address is not usable.
    """
    store = RemoteStore(check_remote(address))
    versions: dict[int, dict[str, RemoteFile]] = {}
    for file in look(store, model).files:
        _, version, path = (*file.path.split("/", 2), "", "")[:3]
        if path and VERSION_NUMBER.fullmatch(version):
            versions.setdefault(int(version), {})[path] = file
    for number in sorted(versions, reverse=True)[:MOST_MANIFESTS]:
        files = versions[number]
        if MANIFEST_FILE in files and not files.keys().isdisjoint(VERSION_FILES):
            into = folder / model / str(number)
            into.mkdir(parents=True)
            for name in {MANIFEST_FILE, SIGNATURE_FILE} & files.keys():
                (into / name).write_bytes(store.read(files[name], MAX_MANIFEST_BYTES))
            yield number, into


def has_files(address: str, model: str, number: int, digests: Mapping[str, str]) -> bool:
    """Whether a version has files of these SHA-256, by their paths in it: each is read.

    Raises RemoteFailed, and ValueError where the address is not usable.
    """
    store, folder = RemoteStore(check_remote(address)), f"{model}/{number}"
    there = {file.path: file for file in store.files(folder)}
    for path, digest in digests.items():
        file, sha256 = there.get(f"{folder}/{path}"), hashlib.sha256()
        if file is None:
            return False
        for piece in store.stream(file, 0):
            sha256.update(piece)
        if sha256.hexdigest() != digest:
            return False
    return True


def _claim(store: RemoteStore, model: str, manifest: bytes) -> int:
    number = 1 + max(_numbers(store, model), default=0)
    for candidate in range(number, number + MOST_TRIES):
        if store.create(f"{model}/{candidate}/{MANIFEST_FILE}", manifest):
            return candidate
    raise RemoteFailed(
        f"{store.address}/{model}: versions {number} to {number + MOST_TRIES - 1} were taken by "
        "others meanwhile; try again"
    )


def _numbers(store: RemoteStore, model: str) -> Iterator[int]:
    """The numbers under which there is anything at all of a model."""
    found = look(store, model)
    for path in (*(file.path for file in found.files), *found.aside):
        name = path.split("/")[1]
        if VERSION_NUMBER.fullmatch(name):
            yield int(name)


@contextmanager
def _deleted_on_failure(store: RemoteStore, uploaded: list[str]) -> Iterator[None]:
    """Delete what was uploaded, the model first, where the block does not come to its end."""
    try:
        yield
    except BaseException:
        for path in reversed(uploaded):
            with suppress(RemoteFailed):
                store.delete(path)
        raise
