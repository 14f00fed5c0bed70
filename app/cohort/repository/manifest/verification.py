"""Verification that a version's files are the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cohort.errors import LoadFailed, quoted
from cohort.repository.manifest.content import (
    MANIFEST_FILE,
    Manifest,
    parse_manifest,
    read_manifest_bytes,
)
from cohort.repository.manifest.trust import Trust, Untrusted
from cohort.repository.version_files import MODEL_FILE
from cohort.session import Digests, why_pointer


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """The publication record of a version.

    manifest: Its manifest; default None: no manifest.
    signer: The fingerprint of the trusted key that signed it; default "": no key was required.
    """

    manifest: Manifest | None = None
    signer: str = ""


def read_published(
    folder: Path,
    digests: Digests,
    *,
    trust: Trust | None = None,
    file: str = MODEL_FILE,
    model: str = "",
) -> Published:
    """Read the manifest of the version in `folder`, and verify all files that it names.

    digests: Computes and keeps the digests of files.
    trust: The trusted keys, one of which must have signed it; default None: no signature is needed.
    file: The version's main file, which a manifest with digests must name; default MODEL_FILE.
    model: The name that it must be signed for; default: that of the folder above the version's.

    Raises LoadFailed if a file is not the published one, and Untrusted.
    """
    content = read_manifest_bytes(folder)
    signer = "" if trust is None else trust.find_signer(folder, content)
    if content is None:
        return Published()
    manifest = parse_manifest(content)
    if trust is not None:
        _check_signed(model or folder.parent.name, manifest)
    verify_digests(folder, manifest, digests, file)
    return Published(manifest, signer)


def _check_signed(model: str, manifest: Manifest) -> None:
    """Raise Untrusted unless the signed manifest names this model and has digests of files."""
    if manifest.model != model:
        raise Untrusted(
            f"it was signed as a version of {quoted(manifest.model)}, not of {quoted(model)}; "
            "publish it under this name"
        )
    if not manifest.files:
        raise Untrusted(f"its signed {MANIFEST_FILE} has no digests of files")


def verify_digests(
    folder: Path, manifest: Manifest, digests: Digests, file: str = MODEL_FILE
) -> None:
    """Raise LoadFailed, naming the file, unless all files are the published ones."""
    for name, published in manifest.files.items():
        path = PurePosixPath(name)
        if not name or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts:
            raise LoadFailed(
                f"{MANIFEST_FILE}: {quoted(name)} is not a file inside the version's folder"
            )
        try:
            found = digests.of(folder / path)
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise LoadFailed(
                f"{quoted(name)} was published, but cannot be read: {reason}"
            ) from None
        if found != published and (pointer := why_pointer(folder / path)):
            raise LoadFailed(f"{quoted(name)} is {pointer}")
        if found != published:
            raise LoadFailed(
                f"{quoted(name)} is not the file that was published: its SHA-256 starts with "
                f"{found[:12]}, {MANIFEST_FILE} states {published[:12]}"
            )
    if manifest.files and file not in manifest.files:
        raise LoadFailed(f"{MANIFEST_FILE} has digests, but not of {file}")


def verify_opened(manifest: Manifest, opened: Mapping[str, str]) -> None:
    """Raise LoadFailed, naming the file, unless the opened files are the published ones.

    opened: The SHA-256, in hex, by path in the version's folder. It covers the model and its
        external data, or a pipeline and the files that it names.

    A manifest without digests does not restrict the files.
    """
    published = {PurePosixPath(name): digest for name, digest in manifest.files.items()}
    for name, digest in opened.items() if published else ():
        expected = published.get(PurePosixPath(name))
        if expected is None:
            raise LoadFailed(f"the model opens {quoted(name)}, which {MANIFEST_FILE} does not name")
        if digest != expected:
            raise LoadFailed(f"{quoted(name)} is not the file that was published")
