"""Shared memory of the machine: regions that callers register, and what is read and written there.

A region is a part of a POSIX shared memory object, a file in /dev/shm. It is read by `preadv` and
written by `pwrite`, never mapped: its owner may shorten it at any moment, which ends a process that
has mapped it and is a short read to one that has not.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
"""

from __future__ import annotations

import os
import stat
import weakref
from typing import Any, NamedTuple

import numpy as np

from cohort.codec.binary import BytesLike
from cohort.errors import Forbidden, InvalidInput, NotFound, TooLarge, quoted

FOLDER = "/dev/shm"  # noqa: S108 - where shm_open has its objects

MOST_REGIONS = 256
"""Regions of all callers; each takes a descriptor."""

MOST_OF_A_CALLER = 64
"""Those of one of the callers, where callers need keys."""

LONGEST_NAME = 255
"""Characters of a region's name, and bytes of a key."""

WRITTEN_AT_ONCE = 1 << 30

NO_CUDA = "CUDA's shared memory is not supported; the system's is"

OFF = "shared memory is off: COHORT_SHARED_MEMORY is not set"


class SharedPart(NamedTuple):
    """Where a tensor is in shared memory.

    place: Where the request says so, for messages.
    region: The region's name.
    size: Its bytes; those of an output at most.
    offset: Where it begins in the region.
    """

    place: str
    region: str
    size: int
    offset: int


class Region:
    """A registered part of a shared memory object. All methods may be called on any thread.

    The object stays open until nobody uses the region any more, unregistered or not.

    name: The region's name.
    key: The object's.
    offset, size: The part that is registered, in bytes.

    Raises InvalidInput where there is no such object, or it is too small.
    """

    def __init__(self, name: str, key: str, offset: int, size: int) -> None:
        self.name, self.key, self.offset, self.size = name, key, offset, size
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            self._descriptor = os.open(f"{FOLDER}/{key.removeprefix('/')}", flags)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise InvalidInput(
                f"the shared memory {quoted(key)} cannot be opened to be read and written: {reason}"
            ) from None
        weakref.finalize(self, os.close, self._descriptor)
        self._check(size, offset)

    def check(self, part: SharedPart) -> None:
        """Raise InvalidInput unless a part of it is there."""
        if part.offset + part.size > self.size:
            raise InvalidInput(
                f"{part.place}: {part.size} bytes from {part.offset} on are not in shared memory "
                f"region {quoted(self.name)}, which has {self.size} bytes"
            )
        self._check(part.size, self.offset + part.offset)

    def read(self, part: SharedPart) -> BytesLike:
        """Copy a part of it. Raises InvalidInput where it is not there."""
        self.check(part)
        data = np.empty(part.size, np.uint8).data
        at, begin = 0, self.offset + part.offset
        while at < part.size:
            count = os.preadv(self._descriptor, [data[at:]], begin + at)
            if not count:
                raise self._shrunken()
            at += count
        return data

    def write(self, part: SharedPart, data: BytesLike) -> None:
        """Write to a part of it, from its beginning. Raises InvalidInput where it is not there."""
        self.check(part)
        view, at, begin = memoryview(data).cast("B"), 0, self.offset + part.offset
        try:
            while at < len(view):
                some = view[at : at + WRITTEN_AT_ONCE]
                at += os.pwrite(self._descriptor, some, begin + at)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise InvalidInput(
                f"shared memory region {quoted(self.name)} cannot be written: {reason}"
            ) from None

    def _check(self, size: int, offset: int) -> None:
        """Raise InvalidInput unless the object is still there, and as large as it has to be."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{quoted(self.key)} is not shared memory")
        if found.st_nlink != 1:  # another link may be somebody else's name for another's memory
            state = "has a second name" if found.st_nlink else "was removed"
            raise InvalidInput(
                f"the shared memory {quoted(self.key)} of region {quoted(self.name)} {state}: "
                "create it, unregister the region and register it again"
            )
        if offset + size > found.st_size:
            raise self._shrunken(found.st_size, offset + size)

    def _shrunken(self, size: int | None = None, needed: int | None = None) -> InvalidInput:
        sizes = "" if size is None else f": it has {size} bytes, and {needed} are needed"
        return InvalidInput(
            f"the shared memory {quoted(self.key)} of region {quoted(self.name)} is too small"
            f"{sizes}"
        )


class Regions:
    """The regions that callers have registered. Each caller that has a key sees its own.

    prefix: How the keys of shared memory begin that may be registered; default "": none may.
    most_bytes: The bytes of a request's inputs in shared memory at most; default: 64 MiB.
    workers: The processes that serve; regions need a single one. Default 1.
    """

    def __init__(self, prefix: str = "", *, most_bytes: int = 64 << 20, workers: int = 1) -> None:
        self._prefix, self._workers = prefix, workers
        self._most_bytes = most_bytes
        self._regions: dict[tuple[str, str], Region] = {}

    def register(
        self, owner: str, name: str, key: str, *, offset: int, size: int, admin: bool = False
    ) -> None:
        """Register a region.

        owner: The caller's name; "" where callers need no key.
        name: The region's name.
        key: The shared memory's.
        offset, size: The part of it, in bytes.
        admin: Whether the caller is an operator; default False.

        Raises Forbidden for a key that the caller may not use, and InvalidInput.
        """
        self._check_key(owner, key, admin=admin)
        if not 0 < len(name) <= LONGEST_NAME:
            raise InvalidInput(
                f"a region's name has 1 to {LONGEST_NAME} characters, got {len(name)}"
            )
        if not size:
            raise InvalidInput("byte_size must be > 0")
        if (owner, name) in self._regions:
            raise InvalidInput(
                f"shared memory region {quoted(name)} is registered already: unregister it first"
            )
        own = sum(one == owner for one, _ in self._regions)
        if len(self._regions) >= MOST_REGIONS or (owner and own >= MOST_OF_A_CALLER):
            raise InvalidInput(
                f"{own} shared memory regions are registered by this caller, and "
                f"{len(self._regions)} by all: no more than {MOST_OF_A_CALLER} by a caller with a "
                f"key, and {MOST_REGIONS} in all, can be; unregister those that are not used"
            )
        self._regions[owner, name] = Region(name, key, offset, size)

    def _check_key(self, owner: str, key: str, *, admin: bool) -> None:
        if not self._prefix:
            raise Forbidden(f"{OFF}; the operator sets it to how keys begin, such as /cohort_")
        if self._workers > 1:
            raise Forbidden(
                "shared memory regions are known to one process, and this server has "
                f"{self._workers} (COHORT_WORKERS): send tensors in the request"
            )
        file = key.removeprefix("/")
        if not key.isprintable() or "/" in file or len(key.encode()) > LONGEST_NAME:
            raise InvalidInput(f"{quoted(key)} is no key of shared memory, such as /name")
        prefix = self._prefix if not owner or admin else f"{self._prefix}{owner}:"
        if not key.startswith(prefix):
            whose = "" if prefix == self._prefix else " followed by this caller's name and ':'"
            raise Forbidden(
                f"shared memory key {quoted(key)} does not begin with {quoted(prefix)}, which is "
                f"COHORT_SHARED_MEMORY{whose}"
            )

    def unregister(self, owner: str, name: str = "") -> None:
        """Unregister a caller's region, if there is one; by default all that it has."""
        for one in [one for one in self._regions if one[0] == owner and name in ("", one[1])]:
            del self._regions[one]

    def status(self, owner: str, name: str = "") -> list[dict[str, Any]]:
        """Describe a caller's region; by default all that it has. Raises NotFound."""
        found = [
            region
            for (whose, _), region in self._regions.items()
            if whose == owner and name in ("", region.name)
        ]
        if name and not found:
            raise NotFound(f"shared memory region {quoted(name)} is not registered")
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.size}
            for one in found
        ]

    def admit(self, place: str, size: int) -> None:
        """Raise InvalidInput where there is none, and TooLarge for more bytes than a request's.

        place: Where the request first says that a tensor is in shared memory.
        size: The bytes of all inputs there.
        """
        if not self._prefix:
            raise InvalidInput(f"{place}: {OFF}")
        if size > self._most_bytes:
            raise TooLarge(
                f"the inputs in shared memory have {size} bytes, and a request's may have "
                f"{self._most_bytes} (COHORT_MAX_BODY_MB)"
            )

    def find(self, owner: str, part: SharedPart) -> Region:
        """The region of a part, which is there now. Raises InvalidInput."""
        region = self._regions.get((owner, part.region))
        if region is None:
            raise InvalidInput(
                f"{part.place}: shared memory region {quoted(part.region)} is not registered"
            )
        region.check(part)
        return region


NO_REGIONS = Regions()
