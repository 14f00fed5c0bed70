"""Uploading a version to a remote repository; it counts only once it is complete."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cohort.errors import RemoteFailed, check_model_name
from cohort.remote.raw_listing import list_files
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

MAX_TRIES = 100
"""Limit of tries to claim a number that no other upload claims at the same time."""


def upload_version(
    address: str,
    model: str,
    files: Mapping[str, Path],
    *,
    sent: Callable[[int], None] = lambda _: None,
) -> int:
    """Upload the files of a version under the next number of its model; return that number.

    address: The repository's address, such as s3://bucket/models.
    model: The model's name.
    files: Local files by their paths in the version's folder. They must include manifest.json, and
        model.onnx or pipeline.yaml.
    sent: Called after each uploaded file with its size; default: no call.

    Creating manifest.json claims the number; only one of several concurrent uploads succeeds. The
    last file is model.onnx or pipeline.yaml: a version without it does not count.

    Raises RemoteFailed, and ValueError if the address or the files are unusable. If the upload
    fails or the process is interrupted, the uploaded files are deleted if possible.
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


MAX_MANIFESTS = 10
"""Limit of manifests that are fetched to check if a version is published already."""


def fetch_manifests(address: str, model: str, folder: Path) -> Iterator[tuple[int, Path]]:
    """Fetch the manifest and signature of a model's newest versions, the newest first.

    Yields the number and the folder, `<model>/<version>` in `folder`, of each version; at most
    MAX_MANIFESTS.

    Raises RemoteFailed, and ValueError if the address is unusable.
    """
    store = RemoteStore(check_remote(address))
    versions: dict[int, dict[str, RemoteFile]] = {}
    for file in list_files(store, model).files:
        _, version, path = (*file.path.split("/", 2), "", "")[:3]
        if path and VERSION_NUMBER.fullmatch(version):
            versions.setdefault(int(version), {})[path] = file
    for number in sorted(versions, reverse=True)[:MAX_MANIFESTS]:
        files = versions[number]
        if MANIFEST_FILE in files and not files.keys().isdisjoint(VERSION_FILES):
            into = folder / model / str(number)
            into.mkdir(parents=True)
            for name in {MANIFEST_FILE, SIGNATURE_FILE} & files.keys():
                (into / name).write_bytes(store.read(files[name], MAX_MANIFEST_BYTES))
            yield number, into


def has_files(address: str, model: str, number: int, digests: Mapping[str, str]) -> bool:
    """Return True if a version's files have these SHA-256, by path; reads each file.

    Raises RemoteFailed, and ValueError if the address is unusable.
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
    for candidate in range(number, number + MAX_TRIES):
        if store.create(f"{model}/{candidate}/{MANIFEST_FILE}", manifest):
            return candidate
    raise RemoteFailed(
        f"{store.address}/{model}: other uploads claimed versions {number} to "
        f"{number + MAX_TRIES - 1}; try again"
    )


def _numbers(store: RemoteStore, model: str) -> Iterator[int]:
    """Yield the version numbers of a model that have any file, complete or not."""
    found = list_files(store, model)
    for path in (*(file.path for file in found.files), *found.aside):
        name = path.split("/")[1]
        if VERSION_NUMBER.fullmatch(name):
            yield int(name)


@contextmanager
def _deleted_on_failure(store: RemoteStore, uploaded: list[str]) -> Iterator[None]:
    """Delete the uploaded files, the model first, if the block raises."""
    try:
        yield
    except BaseException:
        for path in reversed(uploaded):
            with suppress(RemoteFailed):
                store.delete(path)
        raise
