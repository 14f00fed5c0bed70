"""Listing a repository despite keys that obstore rejects, such as a key with `..` in it.

One such key ends a listing with an error that names the key; the files listed before it are lost.
So the listing is requested again in smaller parts. The first part omits the keys that sort before
any model's name. If that fails, each model is listed, and then each version. Only the parts that
still fail are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from time import monotonic

from cohort.errors import RemoteFailed
from cohort.remote.store import LISTING_SECONDS, KeyRefused, RemoteFile, RemoteStore

FIRST_NAME = "0"
"""The start of valid names in sort order: `..`, `.` and an empty part sort before it."""

VERSION_DEPTH = 2
"""The depth of `<name>/<version>`, which is listed as a whole or left aside."""


@dataclass(frozen=True, slots=True)
class RawListing:
    """The result of a listing.

    files: All files except those in folders left aside.
    refused: Sentences about unusable keys, by the folder in which each was found.
    aside: The folders that could not be listed.
    """

    files: Sequence[RemoteFile]
    refused: Mapping[str, str] = field(default_factory=dict)
    aside: Set[str] = frozenset()


def list_files(store: RemoteStore, folder: str = "", *, known: Collection[str] = ()) -> RawListing:
    """List a repository, or a model's folder in it; leave only folders with rejected keys aside.

    known: Models to list by name if the names of models cannot be listed; default none.

    Raises RemoteFailed, and KeyRefused if nothing could be listed.
    """
    walk = _Walk(store, known)
    walk.visit(folder)
    if folder in walk.aside:
        raise KeyRefused(walk.refused[folder])
    return RawListing(walk.files, walk.refused, walk.aside)


class _Walk:
    def __init__(self, store: RemoteStore, known: Collection[str]) -> None:
        self.files: list[RemoteFile] = []
        self.refused: dict[str, str] = {}
        self.aside: set[str] = set()
        self._store, self._known = store, known
        self._ends = monotonic() + LISTING_SECONDS

    def visit(self, folder: str) -> None:
        if self.refused and monotonic() > self._ends:
            raise RemoteFailed(
                f"{self._store.address} was not listed within {LISTING_SECONDS:g} s; "
                f"{next(iter(self.refused.values()))}"
            )
        try:
            self.files += self._store.files(folder)
        except KeyRefused as error:
            self._visit_parts(folder, error)

    def _visit_parts(self, folder: str, error: KeyRefused) -> None:
        depth = folder.count("/") + 1 if folder else 0
        if depth >= VERSION_DEPTH:
            self._leave_aside(folder, error)
            return
        try:
            after = f"{folder}/{FIRST_NAME}" if folder else FIRST_NAME
            self.files += self._store.files(folder, after=after)
        except KeyRefused:
            self._visit_children(folder, depth)
        else:
            self.refused[folder] = str(error)

    def _visit_children(self, folder: str, depth: int) -> None:
        try:
            folders, files = self._store.children(folder)
        except KeyRefused as error:
            if depth or not self._known:
                self._leave_aside(folder, error)
                return
            self.refused[folder] = str(error)
            folders, files = sorted(self._known), []
        self.files += files
        for one in folders:
            self.visit(one)

    def _leave_aside(self, folder: str, error: KeyRefused) -> None:
        self.refused[folder] = str(error)
        self.aside.add(folder)
