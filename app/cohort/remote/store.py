"""Requests to a remote repository, and the messages for their failures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from os import environ
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from cohort.errors import RemoteFailed, quoted
from cohort.extras import how_to_install
from cohort.remote.web_server import (
    FETCH_BYTES,
    READ_SECONDS,
    RETRIES,
    RETRYING_SECONDS,
    NotThere,
    RangesRefused,
    WebServer,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Store

MAX_FILES_LISTED = 200_000
"""Limit of files in a repository, so that an unrelated bucket does not fill the memory."""

INDEX_FILE = "SHA256SUMS"
"""The file that replaces the listing on a web server: the output of `sha256sum`."""

INDEX_HINT = (
    f": a web server cannot list a folder, so {INDEX_FILE} has to name its files; in the "
    f"folder: find . -type f ! -name {INDEX_FILE} -exec sha256sum {{}} + > {INDEX_FILE}"
)

MAX_INDEX_BYTES = 32 << 20

CONNECTING_SECONDS = 5.0
MAX_REQUEST_SECONDS = 3600.0
"""Limit of one request; a later request then resumes from the bytes received."""
LISTING_PAGE_SECONDS = 30.0
"""Limit for one page of a thousand files, which obstore reads whole, and for a small file."""
LISTING_SECONDS = 300.0
"""Limit for all pages, or for an index."""

UPLOAD_PART_BYTES = 16 << 20
"""Size of an upload's parts. S3 accepts 10,000 parts, so files up to 160 GB."""
UPLOADS_AT_ONCE = 4

_LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")
_KEY = re.compile(r'Path "(.*?)"(?: contained|: )', re.DOTALL)
_ERROR = re.compile(r"<Code>([A-Za-z]{1,80})</Code>")
_STATUS = re.compile(r"status code: ([1-5][0-9]{2}) ")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a remote repository.

    path: The path below the repository's address.
    identity: A text that changes with the content: the SHA-256, or the ETag and the size, or the
        time of the last change and the size.
    size: The size in bytes; default None: not listed.
    etag: The ETag, so that a request for a part fails if the file has changed; default empty: none.
    modified: The time of the last change, in seconds since 1970; default 0: not listed.
    sha256: The SHA-256 in hex; default empty: not listed.
    """

    path: str
    identity: str
    size: int | None = None
    etag: str = ""
    modified: float = 0.0
    sha256: str = ""


class RemoteStore:
    """A repository at a checked address. Its methods block and raise RemoteFailed.

    address: The address, such as s3://bucket/models.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._web: WebServer | None = None
        if address.startswith(("http://", "https://")):
            self._web = WebServer(address)
        else:
            self._store = _open(address, MAX_REQUEST_SECONDS)
            self._lister = _open(address, LISTING_PAGE_SECONDS)

    def files(self, folder: str = "", *, after: str = "") -> list[RemoteFile]:
        """List the files in and below a folder; default: all files.

        after: List only paths that sort after it; default: all.

        Raises KeyRefused if a key is not a valid path.
        """
        return self._listed(folder, after) if self._web is None else self._indexed()

    def children(self, folder: str = "") -> tuple[list[str], list[RemoteFile]]:
        """List the folders and the files directly in a folder of a bucket; default: the top.

        Raises KeyRefused if a key is not a valid path.
        """
        import obstore  # noqa: PLC0415

        with self._explained(""):
            found = obstore.list_with_delimiter(self._lister, folder or None)
        return list(found["common_prefixes"]), [_remote_file(one) for one in found["objects"]]

    def read(self, file: RemoteFile, most: int) -> bytes:
        """Return the content of a file of up to `most` bytes, within LISTING_PAGE_SECONDS."""
        return self._read(file, most, LISTING_PAGE_SECONDS)

    def stream(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        """Yield the content of a file from `offset` on, in pieces of about FETCH_BYTES.

        Raises RangesRefused if the server sends only whole files, and RemoteFailed if the file
        has changed or ends early.
        """
        return self._stream(file, offset, MAX_REQUEST_SECONDS)

    def _read(self, file: RemoteFile, most: int, seconds: float) -> bytes:
        if file.size is not None and file.size > most:
            raise RemoteFailed(f"{file.path} has more than {most} bytes")
        content = bytearray()
        for piece in self._stream(file, 0, seconds):
            content += piece
            if len(content) > most:
                raise RemoteFailed(f"{file.path} has more than {most} bytes")
        return bytes(content)

    def _stream(self, file: RemoteFile, offset: int, seconds: float) -> Iterator[bytes]:
        if self._web is not None:
            yield from self._web.stream(file.path, offset, seconds)
            return
        import obstore  # noqa: PLC0415 - an extra, and 20 MB
        from obstore.exceptions import NotSupportedError  # noqa: PLC0415

        store = self._lister if seconds <= LISTING_PAGE_SECONDS else self._store
        options: dict[str, Any] = {"range": {"offset": offset}} if offset else {}
        if file.etag and not file.etag.startswith("W/"):
            options["if_match"] = file.etag
        with self._explained(file.path):
            try:
                answer = obstore.get(store, file.path, options=options)  # type: ignore[arg-type]
            except NotSupportedError:
                raise RangesRefused from None
            size = answer.meta["size"]
            if file.size is not None and size != file.size:
                raise RemoteFailed(f"{file.path} has changed while it was fetched")
            for piece in answer.stream(min_chunk_size=FETCH_BYTES):
                offset += len(piece)
                yield piece
        if offset != size:
            raise RemoteFailed(f"{file.path} ended after {offset} of {size} bytes")

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if it exists already."""
        import obstore  # noqa: PLC0415
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        with self._explained(path):
            try:
                obstore.put(self._store, path, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def put(self, path: str, file: Path) -> None:
        """Upload a local file, in parts if it is large."""
        import obstore  # noqa: PLC0415

        with self._explained(path):
            obstore.put(
                self._store,
                path,
                file,
                chunk_size=UPLOAD_PART_BYTES,
                max_concurrency=UPLOADS_AT_ONCE,
            )

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        import obstore  # noqa: PLC0415

        with self._explained(path):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    def _listed(self, folder: str, after: str) -> list[RemoteFile]:
        import obstore  # noqa: PLC0415

        found: list[RemoteFile] = []
        ends = monotonic() + LISTING_SECONDS
        with self._explained(""):
            pages = obstore.list(
                self._lister, folder or None, offset=after or None, chunk_size=1000
            )
            for page in pages:
                found += map(_remote_file, page)
                if monotonic() > ends:
                    raise RemoteFailed(
                        f"{self.address} was not listed within {LISTING_SECONDS:g} s"
                    )
                if len(found) > MAX_FILES_LISTED:
                    raise RemoteFailed(
                        f"{self.address} has more than {MAX_FILES_LISTED} files; name a folder in "
                        "it that has only models"
                    )
        return found

    def _indexed(self) -> list[RemoteFile]:
        try:
            content = self._read(RemoteFile(INDEX_FILE, ""), MAX_INDEX_BYTES, LISTING_SECONDS)
            return read_index(content.decode())
        except NotThere as error:
            raise RemoteFailed(f"{error}{INDEX_HINT}") from None
        except ValueError as error:
            raise RemoteFailed(f"{self.address}/{INDEX_FILE}: {error}") from None

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, InvalidPathError  # noqa: PLC0415

        where = f"{self.address}/{path}" if path else self.address
        try:
            yield
        except FileNotFoundError as error:
            raise RemoteFailed(f"{where} not found") from error
        except InvalidPathError as error:
            key = match[1] if (match := _KEY.search(str(error))) else ""
            raise KeyRefused(
                f"the bucket has the key {quoted(key, 200)}, which no file can have: delete it"
            ) from error
        except (BaseError, ValueError, OverflowError) as error:
            raise RemoteFailed(f"{where} {explain_failure(error)}") from error


class KeyRefused(RemoteFailed):
    """The repository has a key that is not a valid path, so that nothing was listed."""


def read_index(text: str) -> list[RemoteFile]:
    """Return the files that an index names. Raises ValueError with an invalid line's number."""
    files = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f"line {number} is not a SHA-256 and a path, as sha256sum writes them")
        digest, path = match.groups()
        files[path] = RemoteFile(path, digest, sha256=digest)
        if len(files) > MAX_FILES_LISTED:
            raise ValueError(f"it has more than {MAX_FILES_LISTED} files")
    return list(files.values())


def explain_failure(error: Exception) -> str:
    """Return a clause that explains obstore's error, with advice if the fix is known.

    Of a response, it contains only the status and a code in S3's form. A redirect may have led to
    a host that only this process can reach, whose content must not leak.
    """
    text = str(error).partition("\n\nDebug source")[0]
    code = match[1] if (match := _ERROR.search(text)) else ""
    name = type(error).__name__
    if name == "PreconditionError":
        return "has changed while it was fetched"
    if name in {"PermissionDeniedError", "UnauthenticatedError"} or _is_refusal(text):
        why = f" ({code})" if code else ""
        return f"refuses access{why}: check the credentials in the environment"
    first = text.partition("\n")[0]
    if "error sending request" in first or "operation timed out" in first:
        return "cannot be reached, or does not answer in time"
    if not code and (match := _STATUS.search(first)):
        code = match[1]
    if code:
        return f"answers {code}"
    return f"gives an answer that cannot be used ({name})"


def _remote_file(listed: Mapping[str, Any]) -> RemoteFile:
    etag, size = listed["e_tag"] or "", listed["size"]
    modified = listed["last_modified"].timestamp()
    return RemoteFile(listed["path"], f"{etag or modified}:{size}", size, etag, modified)


def _is_refusal(text: str) -> bool:
    words = ("Missing AccessKeyId", "must be specified", "credential", " 401 ", " 403 ")
    return any(word in text for word in words)


def _open(address: str, seconds: float) -> S3Store:
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError:
        raise RemoteFailed(f"{address} needs obstore: {how_to_install('remote')}") from None
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECTING_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(seconds=seconds),
        "allow_http": address.startswith("http://") or _endpoint().startswith("http://"),
    }
    retry: RetryConfig = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(seconds=RETRYING_SECONDS),
    }
    try:
        return from_url(address, client_options=client, retry_config=retry)  # type: ignore[return-value]
    except (BaseError, ValueError) as error:  # no request was sent yet
        first = str(error).partition("\n")[0]
        raise RemoteFailed(f"{address} failed: {first.rpartition(' - ')[2] or first}") from error


def _endpoint() -> str:
    """Return the operator's own endpoint of S3 or Azure; empty if none is set."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    return next((environ[name] for name in names if environ.get(name)), "")
