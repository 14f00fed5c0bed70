"""The models folder, or the address, that a version is published to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from cohort.errors import LoadFailed, RemoteFailed
from cohort.repository import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Trust,
    fingerprint_of,
    parse_manifest,
    read_published,
    sign_manifest,
)
from cohort.session import Digests
from cohort.system.remote_address import is_remote
from cohort_prepare.failures import Misused
from cohort_prepare.publishing.placing import place, version_numbers
from cohort_prepare.publishing.request import Publication, PublishRequest


def write_manifest(request: PublishRequest, folder: Path, content: bytes) -> str:
    """Write the manifest and, with a key, its signature; return the key's fingerprint."""
    (folder / MANIFEST_FILE).write_bytes(content)
    if request.key is None:
        return ""
    (folder / SIGNATURE_FILE).write_bytes(sign_manifest(content, request.key))
    return fingerprint_of(request.key.public_key())


def find_published(request: PublishRequest, files: Mapping[str, str]) -> Publication | None:
    """Return the newest version with these files, signed by the key if there is one."""
    trust = None
    if request.key is not None:
        public = request.key.public_key()
        trust = Trust({fingerprint_of(public): public})
    if is_remote(request.to):
        return _already_there(request, files, trust)
    model = Path(request.to) / request.name
    for number in sorted(version_numbers(model), reverse=True):
        with suppress(LoadFailed):
            kind = next(iter(files))
            found = read_published(model / str(number), Digests(), trust=trust, file=kind)
            if found.manifest is not None and found.manifest.files == files:
                where = str(model / str(number))
                return Publication(number, where, found.manifest, True, found.signer)
    return None


def _already_there(
    request: PublishRequest, files: Mapping[str, str], trust: Trust | None
) -> Publication | None:
    """Return such a version in a remote repository, among its newest versions.

    A version with a damaged file does not count: publishing it again is the fix.
    """
    from cohort.remote import fetch_manifests, has_files

    with _remote_failures(request), TemporaryDirectory(prefix="cohort-") as name:
        for number, folder in fetch_manifests(request.to, request.name, Path(name)):
            with suppress(LoadFailed):
                content = (folder / MANIFEST_FILE).read_bytes()
                signer = "" if trust is None else trust.find_signer(folder, content)
                manifest = parse_manifest(content)
                if manifest.files == files and has_files(request.to, request.name, number, files):
                    return Publication(number, _address(request, number), manifest, True, signer)
    return None


@contextmanager
def _remote_failures(request: PublishRequest) -> Iterator[None]:
    try:
        yield
    except (RemoteFailed, ValueError) as error:
        raise Misused(f"--to {request.to}: {error}") from error


def _address(request: PublishRequest, number: int) -> str:
    return f"{request.to.rstrip('/')}/{request.name}/{number}"


def place_version(request: PublishRequest, folder: Path) -> tuple[int, str]:
    """Publish a folder as the next version; return its number, and its folder or address.

    Raises Misused if a remote repository refuses it, and OSError.
    """
    if not is_remote(request.to):
        number = place(folder)
        return number, str(folder.parent / str(number))
    from cohort.remote import upload_version

    files = {
        file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()
    }
    with _remote_failures(request):
        number = upload_version(request.to, request.name, files)
    return number, _address(request, number)
