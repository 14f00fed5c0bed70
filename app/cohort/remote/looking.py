"""Listing a repository around keys that obstore refuses, such as one with `..` in it.

One such key ends a listing, with its name, and without the files before it. So the listing is
asked for again in parts, as small as need be: without what sorts before any model's name, then
model by model, then version by version. Only the parts that still fail are left aside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from time import monotonic

from cohort.errors import RemoteFailed
from cohort.remote.store import LISTING_SECONDS, KeyRefused, RemoteFile, RemoteStore

FIRST_NAME = "0"
"""Models' names and versions' numbers are not before it, and `..`, `.`, an empty part are."""

VERSION_DEPTH = 2
"""Of `<name>/<version>`, which is taken whole or not at all."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a listing showed.

    files: All files but those aside.
    refused: Which key nothing can be done with, by the folder that it was met in: sentences.
    aside: The folders of which it is not known what is in them.
    """

    files: Sequence[RemoteFile]
    refused: Mapping[str, str] = field(default_factory=dict)
    aside: Set[str] = frozenset()


def look(store: RemoteStore, folder: str = "", *, known: Collection[str] = ()) -> Look:
    """List a repository, or a model's folder in it; keys that are refused leave only theirs aside.

    known: Models to look for by name where not even their names can be listed.

    Raises RemoteFailed; KeyRefused where nothing at all could be listed.
    """
    walk = _Walk(store, known)
    walk.visit(folder)
    if folder in walk.aside:
        raise KeyRefused(walk.refused[folder])
    return Look(walk.files, walk.refused, walk.aside)


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
